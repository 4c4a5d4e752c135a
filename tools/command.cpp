#include "tools/command.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <new>
#include <stdexcept>
#include <system_error>

#include "bonfire/base/error.h"
#include "bonfire/base/log.h"
#include "bonfire/base/machine.h"
#include "bonfire/base/nearest.h"
#include "bonfire/base/program_name.h"
#include "bonfire/train/config/config.h"
#include "bonfire/train/config/foreign_keys.h"

namespace bonfire::tools {

namespace {

std::string footer(const std::string& examples) {
  if (examples.empty()) return {};
  const std::string called = "bonfire ", name = base::program_name() + " ";
  std::string text = "Examples:";
  for (size_t begin = 0; begin < examples.size();) {
    size_t end = std::min(examples.find('\n', begin), examples.size());
    std::string line = examples.substr(begin, end - begin);
    if (line.starts_with(called)) line.replace(0, called.size(), name);
    text += "\n  " + line;
    begin = end + 1;
  }
  return text;
}

std::vector<const CLI::App*> commands_of(const CLI::App& app) { return app.get_subcommands({}); }

std::vector<std::string> command_names(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::App* command : commands_of(app)) names.push_back(command->get_name());
  return names;
}

std::vector<std::string> option_names(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::Option* option : app.get_options())
    for (const std::string& name : option->get_lnames()) names.push_back("--" + name);
  return names;
}

// The innermost command that was named, and the first argument after it.
struct Asked {
  const CLI::App* command;
  std::string path;   // "bonfire data"
  std::string other;  // empty: nothing after it
};

Asked read(const CLI::App& program, const std::vector<std::string>& words) {
  Asked asked{&program, program.get_name(), {}};
  for (const std::string& word : words) {
    if (!asked.other.empty()) break;
    std::vector<const CLI::App*> commands = commands_of(*asked.command);
    auto found = std::find_if(commands.begin(), commands.end(), [&](auto* app) { return app->get_name() == word; });
    if (found == commands.end()) {
      asked.other = word;
    } else {
      asked.command = *found;
      asked.path += " " + word;
    }
  }
  return asked;
}

std::string setting_of(std::string option) {  // --batch-size → batch_size
  option.erase(0, 2);
  std::replace(option.begin(), option.end(), '-', '_');
  std::string ours = train::our_key_for(option);
  return ours.empty() ? option : ours;
}

bool is_setting(const std::string& option) {
  for (const auto& [key, values] : train::config_keys())
    if (key == setting_of(option)) return true;
  return false;
}

// `help COMMAND` is `COMMAND --help`, since that is what many type first.
std::vector<std::string> arguments_of(int argc, const char* const* argv) {
  std::vector<std::string> words(argv + 1, argv + argc);
  if (!words.empty() && words[0] == "help") {
    words.erase(words.begin());
    words.emplace_back("--help");
  }
  return words;
}

// What was printed must have arrived: on a full disk it has not.
int flushed(int exit_code) {
  errno = 0;
  if (std::fflush(stdout) == 0 && std::ferror(stdout) == 0) return exit_code;
  base::print_failure(
      fmt::format("bonfire: cannot write the output: {}", errno == 0 ? "a write failed" : std::strerror(errno)));
  return exit_code == 0 ? 1 : exit_code;
}

int failed(const std::string& why) {
  std::fflush(stdout);
  base::print_failure("bonfire: " + why);
  return 1;
}

std::string out_of_memory() {
  return fmt::format(
      "[memory] the {:.1f} GB of this machine do not suffice; expected a smaller batch_size, image_size or num_workers",
      static_cast<double>(base::memory_bytes()) / 1e9);
}

std::string no_command(const Asked& asked) {
  return fmt::format("there is no command '{}'; the nearest is '{}' (see {} --help)", asked.other,
                     base::nearest(asked.other, command_names(*asked.command)), asked.path);
}

// What to say of arguments that are not understood.
std::string explain(const CLI::App& program, const CLI::ParseError& error, const std::vector<std::string>& words) {
  Asked asked = read(program, words);
  std::vector<std::string> commands = command_names(*asked.command), options = option_names(*asked.command);
  std::string help = fmt::format("see {} --help", asked.path);
  if (!commands.empty() && asked.other.empty())
    return fmt::format("what shall be done? {} ({})", fmt::join(commands, ", "), help);
  if (!commands.empty() && !asked.other.starts_with("-")) return no_command(asked);
  for (std::string word : words) {
    word = word.substr(0, word.find('='));
    bool known = std::find(options.begin(), options.end(), word) != options.end();
    if (word.starts_with("--") && !known && asked.command->get_option_no_throw("settings") != nullptr &&
        is_setting(word))
      return fmt::format("{} has no option '{}'; settings have no dashes in front: {}=VALUE ({})", asked.path, word,
                         setting_of(word), help);
    if (word.starts_with("--") && !known)
      return fmt::format("{} has no option '{}'; the nearest is '{}' ({})", asked.path, word,
                         base::nearest(word, options), help);
  }
  return fmt::format("{}: {} ({})", asked.path, error.what(), help);
}

// Ranks that are started have it too.
void set_log_level(const std::string& word) {
  ::setenv("BONFIRE_LOG", word.c_str(), 1);
  base::set_log_level(base::parse_log_level(word).value());
}

}  // namespace

Command Command::add(const std::string& name, const std::string& summary, const std::string& examples) {
  CLI::App* command = app_->add_subcommand(name, summary);
  command->footer(footer(examples));
  app_->require_subcommand(1);
  return {*command, *exit_code_};
}

void Command::argument(const std::string& name, std::string& value, const std::string& meaning) {
  app_->add_option(name, value, meaning)->required();
}
void Command::optional_argument(const std::string& name, std::string& value, const std::string& meaning) {
  app_->add_option(name, value, meaning);
}
void Command::arguments(const std::string& name, std::vector<std::string>& values, const std::string& meaning) {
  app_->add_option(name, values, meaning);
}

void Command::option(const std::string& name, bool& value, const std::string& meaning) {
  app_->add_flag(name, value, meaning);
}
void Command::option(const std::string& name, std::string& value, const std::string& meaning) {
  app_->add_option(name, value, meaning);
}
void Command::option(const std::string& name, int64_t& value, const std::string& meaning) {
  app_->add_option(name, value, meaning);
}
void Command::option(const std::string& name, uint64_t& value, const std::string& meaning) {
  app_->add_option(name, value, meaning);
}
void Command::option(const std::string& name, double& value, const std::string& meaning) {
  app_->add_option(name, value, meaning);
}
void Command::choice(const std::string& name, std::string& value, const std::string& meaning,
                     const std::vector<std::string>& choices) {
  app_->add_option(name, value, meaning)->required()->check(CLI::IsMember(choices));
}

void Command::takes_the_rest(std::vector<std::string>& rest) {
  app_->prefix_command();
  rest_ = &rest;
}

void Command::runs(std::function<int()> action) {
  app_->add_option_function<std::string>("--log-level", set_log_level,
                                         "least of the messages on stderr: debug, info (else), warning, error, off")
      ->check(CLI::IsMember(std::vector<std::string>(std::begin(base::kLogLevels), std::end(base::kLogLevels))));
  app_->callback([action = std::move(action), app = app_, rest = rest_, exit_code = exit_code_] {
    if (rest != nullptr) *rest = app->remaining();
    *exit_code = action();
  });
}

std::vector<Command::Words> Command::words() const {
  std::vector<Words> all;
  std::function<void(const CLI::App&, const std::string&)> walk = [&](const CLI::App& app, const std::string& path) {
    std::vector<std::string> words = command_names(app), options = option_names(app);
    words.insert(words.end(), options.begin(), options.end());
    all.push_back({path, words});
    for (const CLI::App* inner : commands_of(app)) walk(*inner, path + (path.empty() ? "" : " ") + inner->get_name());
  };
  walk(*app_, "");
  return all;
}

int run_program(int argc, char** argv, const std::string& summary, const std::string& examples,
                const std::vector<void (*)(Command)>& commands) {
  int exit_code = 0;
  CLI::App program(summary, base::program_name());
  program.footer(footer(examples));
  program.set_version_flag("--version,-V", "bonfire " BONFIRE_VERSION, "Print the version and exit");
  const std::vector<std::string> words = arguments_of(argc, argv);
  for (auto* add : commands) add(Command(program, exit_code));
  Asked asked = read(program, words);
  if (argc > 1 && argv[1] == std::string_view("help") && asked.other != "--help" &&
      !commands_of(*asked.command).empty()) {
    failed(no_command(asked));
    return kAskedWrongly;
  }
  try {
    program.parse(std::vector<std::string>(words.rbegin(), words.rend()));  // it takes them off the end
  } catch (const CLI::Success& help) {
    return flushed(program.exit(help));
  } catch (const CLI::ParseError& error) {
    failed(explain(program, error, words));
    return kAskedWrongly;
  } catch (const Error& error) {
    return failed(error.what());
  } catch (const std::bad_alloc&) {
    return failed(out_of_memory());
  } catch (const std::length_error&) {  // of a container, larger than any memory
    return failed(out_of_memory());
  } catch (const std::system_error& error) {  // of files and threads
    return failed(error.what());
  } catch (const std::exception& error) {
    return failed(fmt::format("unexpected: {}", error.what()));
  }
  return flushed(exit_code);
}

}  // namespace bonfire::tools
