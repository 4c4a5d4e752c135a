#pragma once
// A job that the launcher starts again goes on with the run that it had begun: the run's folder names the job, in the
// file `job`.

#include <filesystem>
#include <optional>

namespace bonfire::train {

// By the first rank, when the run begins. Nothing is written where no launcher has started this process.
void write_job(const std::filesystem::path& run);

// The run that this job had begun, and saved something of, before it was started again. None: it begins as it did
// first.
std::optional<std::filesystem::path> run_before_restart(const std::filesystem::path& output);

}  // namespace bonfire::train
