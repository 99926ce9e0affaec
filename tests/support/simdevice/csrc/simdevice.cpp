// One unit for the compiler: torch's headers take most of the time, and are read once this way. Any file also compiles
// alone.
#include "clock.cpp"
#include "stream.cpp"
#include "memory.cpp"
#include "guard.cpp"
#include "shapes.cpp"
#include "fallback.cpp"
#include "operators.cpp"
#include "amp.cpp"
#include "group.cpp"
#include "collectives.cpp"
#include "bindings.cpp"
