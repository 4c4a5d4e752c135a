#pragma once
// Files and folders that are the user's alone: weights and checkpoints, which may hold what they were trained on.
//
// Under one of the usual umasks (022, 002), which nobody has chosen with them in mind, nobody else may read them:
// files get mode 0600, folders 0700. A user who has set another umask has said who may: that is followed.
//
//   umask 027; bonfire train      # the group may read the run

#include <sys/types.h>

#include <cstddef>
#include <filesystem>
#include <span>
#include <system_error>

namespace bonfire::base {

mode_t mode_by_umask(mode_t asked, mode_t umask);  // asked: 0666 for a file, 0777 for a folder

// As write_file_atomically. A file that is replaced hands on its mode.
void write_private_file(const std::filesystem::path& path, std::span<const std::span<const std::byte>> chunks);

// As std::filesystem::create_directory: true when it was made, false without an error when it was there already.
bool make_private_folder(const std::filesystem::path& path, std::error_code& error);

}  // namespace bonfire::base
