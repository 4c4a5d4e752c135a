#pragma once
// How many threads CPU kernels use.

namespace bonfire::cpu {

// Threads inside the kernels of each CPU device: set_cpu_threads, else BONFIRE_CPU_THREADS, else the cores available.
int cpu_threads();

// Takes effect for devices that are used for the first time afterwards.
void set_cpu_threads(int threads);

}  // namespace bonfire::cpu
