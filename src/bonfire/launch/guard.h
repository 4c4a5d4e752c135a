#pragma once
// Nothing that a launcher starts outlives it, whatever kills it.
//
// PR_SET_PDEATHSIG reaches a rank but not what the rank has started, and a process group not what has left it. So there
// are two processes, each a "child subreaper": whoever loses its parent below them becomes their child, and they can
// find and kill it. The outer one is what the user sees. It only waits and hands signals on. The inner one starts the
// ranks. When the outer one is killed, a pipe tells the inner one, which ends all below it and itself; when the inner
// one is killed, the outer one inherits the ranks and ends them.

#include <functional>

namespace bonfire::launch {

// Runs body(pipe) in a process of its own and returns its exit code; `pipe` can be read once this process is dead.
// SIGINT, SIGTERM, SIGHUP and SIGCHLD are blocked in there; the first three are handed on to it, and when one comes for
// the second time, not at once, all is killed. The calling process is forked: it should have one thread.
int run_guarded(const std::function<int(int pipe)>& body);

// Kills all processes below this one and waits until they are gone.
void end_descendants();

}  // namespace bonfire::launch
