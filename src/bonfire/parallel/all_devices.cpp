#include "bonfire/parallel/all_devices.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <fstream>

#include "bonfire/base/program_name.h"

namespace bonfire::fleet {

namespace {

bool is_plain(char c) {
  return std::isalnum(static_cast<unsigned char>(c)) != 0 ||
         std::string_view("_-+=./:,@%").find(c) != std::string::npos;
}

std::string quoted(const std::string& word) {
  if (!word.empty() && std::all_of(word.begin(), word.end(), is_plain)) return word;
  std::string text = "'";
  for (char c : word) text += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return text + "'";
}

}  // namespace

std::string hint_to_use_all(Device used, const std::vector<Device>& there, const std::vector<std::string>& words) {
  const auto gpus = std::count_if(there.begin(), there.end(), [](Device one) { return one.type == DeviceType::cuda; });
  if (used.type != DeviceType::cuda || gpus < 2 || words.empty()) return {};
  std::vector<std::string> command;
  if (words.size() > 1 && std::filesystem::path(words[0]).filename() == "bonfire" && words[1] == "train") {
    command = {words[0], "train", "--nproc", std::to_string(gpus)};
    command.insert(command.end(), words.begin() + 2, words.end());
  } else {
    command = {"bonfire", "launch", "--nproc_per_node", std::to_string(gpus)};
    command.insert(command.end(), words.begin(), words.end());
  }
  return fmt::format("this process uses {}, one of {} GPUs; to use all: {}", to_string(used), gpus,
                     shell_text(command));
}

std::vector<std::string> command_words() {
  std::ifstream stream("/proc/self/cmdline", std::ios::binary);
  std::vector<std::string> words;
  for (std::string word; std::getline(stream, word, '\0');) words.push_back(word);
  if (!words.empty() && std::filesystem::path(words[0]).filename() == "bonfire" && base::program_name() != "bonfire")
    words[0] = base::program_name();
  return words;
}

std::string shell_text(const std::vector<std::string>& words) {
  std::string text;
  for (const std::string& word : words) text += (text.empty() ? "" : " ") + quoted(word);
  return text;
}

}  // namespace bonfire::fleet
