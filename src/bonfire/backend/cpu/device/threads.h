#pragma once
// How many threads CPU kernels use, and how many kernels run at a time.

namespace bonfire::cpu {

// Threads inside the kernels of each CPU device: set_cpu_threads, else BONFIRE_CPU_THREADS, else the cores available.
int cpu_threads();

// Before the first use of a CPU device; ConfigError afterwards.
void set_cpu_threads(int threads);

// That many CPU devices will work at a time: each gets its share of the cores, unless threads were chosen or are in
// use.
void share_cpu_threads(int devices);

// Independent ops that each CPU device runs side by side, one thread each, where they are neighbours in the plan:
// set_ops_in_flight, else BONFIRE_OPS_IN_FLIGHT, else 1 (every op has all threads). Results do not depend on it.
int ops_in_flight();
void set_ops_in_flight(int ops);  // of devices that are used for the first time afterwards; 0: as if never called

}  // namespace bonfire::cpu
