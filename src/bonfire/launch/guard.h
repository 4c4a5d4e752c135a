#pragma once
// Nothing that a launcher starts outlives it, whatever kills it; and what the program has started besides is left
// alone.
//
// PR_SET_PDEATHSIG reaches a rank but not what the rank has started, and a process group not what has left it. So there
// are two processes below the program, each a "child subreaper": whoever loses its parent below them becomes their
// child, and they can find and kill it. The outer one, the guard, only waits and hands signals on. The inner one starts
// the ranks. When the program or the guard is killed, a pipe tells the next one, which ends all below it and itself;
// when the inner one is killed, the guard inherits the ranks and ends them. The program itself adopts nobody, kills
// nobody and asks after no child but the guard: it may have others, and its own ways with them.
//
// A process that is stopped (SIGSTOP) closes nothing. So the inner one gives the guard a sign of life twice a second,
// from a thread of its own, and the guard one to the program: who gives none for too long is ended with all below it.
// Time in which the one who waits for signs was stopped himself does not count.

#include <chrono>
#include <functional>

namespace bonfire::launch {

// Runs body(pipe) in a process of its own and returns its exit code when no process of it is left; `pipe` can be read
// once the body should end at once, because the program is dead. SIGINT, SIGTERM, SIGHUP and SIGCHLD are blocked in
// there; the first three are handed on to it, and when one comes for the second time, not at once, all is killed. The
// calling process is forked: only the thread that calls goes on there. `silence`: for how long a process of these two
// may give no sign of life.
int run_guarded(const std::function<int(int pipe)>& body, std::chrono::milliseconds silence);

// Kills all processes below this one and waits until they are gone.
void end_descendants();

}  // namespace bonfire::launch
