// What Python sees: module.py and the tests' API are made of these.
#include <ATen/Context.h>
#include <torch/csrc/utils/pybind.h>

#include "group.h"

namespace py = pybind11;

namespace sim {
namespace {

std::atomic<bool> release_gil{false};

// As with CUDA, a launch that finds the queue full waits with whatever locks its caller holds, Python's included.
void wait_for_room(const std::function<void()>& wait) {
  if (!Py_IsInitialized() || !PyGILState_Check()) return wait();
  count(Call::full_queue_with_gil);
  if (!release_gil) return wait();
  py::gil_scoped_release release;
  wait();
}

py::object& python_observer() {
  static auto* instance = new py::object;
  return *instance;
}

void tell_observer(Call call) {
  py::gil_scoped_acquire acquire;
  try {
    if (python_observer()) python_observer()(name_of(call));
  } catch (py::error_already_set& error) {
    error.discard_as_unraisable("the simulated device's observer");
  }
}

py::dict counters(int label) {
  py::dict all;
  for (int call = 0; call < static_cast<int>(Call::count_); call++)
    all[name_of(static_cast<Call>(call))] = counted(label, static_cast<Call>(call));
  return all;
}

py::list entries() {
  py::list all;
  for (const auto& each : schedule())
    all.append(py::make_tuple(each.device, each.stream, each.kind, each.tag, each.start, each.end, each.enqueued));
  return all;
}

using Unlocked = py::call_guard<py::gil_scoped_release>;

}  // namespace

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
  register_memory();
  set_room_waiter(wait_for_room);

  m.attr("DEVICES") = kDevices;
  m.def("current_device", current_device);
  m.def("set_device", set_current_device);
  m.def(
      "synchronize",
      [](int device) {
        count(Call::synchronize_device);
        forbid_in_capture(Call::synchronize_in_capture, "Synchronizing a device");
        touch(device);
        synchronize_device(device);
      },
      Unlocked());
  m.def("drain", [](double seconds) { return drain(static_cast<Nanos>(seconds * 1e9)); }, Unlocked());
  m.def(
      "occupy",
      [](double ms, std::string tag) {
        int device = current_device();
        stream(device, current_stream(device)).push_busy(static_cast<Nanos>(ms * 1e6), std::move(tag));
      },
      Unlocked());
  m.def("default_generator", [](int device) {
    return at::globalContext().defaultGenerator(c10::Device(kSim, static_cast<c10::DeviceIndex>(device)));
  });
  m.def("allocated", allocated);
  m.def("touched", touched);
  m.def("forget_contexts", forget_contexts);

  m.def("schedule", entries);
  m.def("clear_schedule", clear_schedule);
  m.def("set_kernel_time", set_kernel_time);
  m.def("set_copy_time", set_copy_time);
  m.def("set_real_time", set_real_time);
  m.def("set_queue_limit", set_queue_limit);
  m.def("queue_limit", queue_limit);
  m.def("release_gil_when_full", [](bool on) { release_gil = on; });

  m.def("counters", counters);
  m.def("reset_counts", reset_counts);
  m.def("set_label", set_label);
  m.def("label", label);
  m.def("set_observer", [](py::object observe) {
    bool none = observe.is_none();
    set_observer(nullptr);
    python_observer() = std::move(observe);
    if (!none) set_observer(tell_observer);
  });

  py::class_<Captured>(m, "Captured")
      .def(
          "replay",
          [](const Captured& all) {
            for (const auto& each : all.pushes) each();
          },
          Unlocked());
  m.def("begin_capture", begin_capture);
  m.def("end_capture", end_capture);
  m.def("capturing", capturing);

  m.def("make_group", make_group);
  m.def("set_time", set_time);
  m.def("set_default_time", set_default_time);
  m.def("hang_next", hang_next);
  m.def("release_hung", release_hung);
}

}  // namespace sim
