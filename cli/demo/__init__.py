"""`whyidle demo`: a real training job, watched, ending in a verdict."""
