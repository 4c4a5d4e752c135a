#pragma once
// What a command of the program is: arguments, options, examples, and what it does.
//
//   void add_greet(Command program) {
//     Command command = program.add("greet", "Says hello", "bonfire greet Ada --json     {\"hello\": \"Ada\"}");
//     auto wanted = std::make_shared<Wanted>();
//     command.argument("name", wanted->name, "who is greeted");
//     command.option("--json", wanted->json, "print one JSON object");
//     command.runs([wanted] { return greet(*wanted); });
//   }
//
// A command leaves the work to the library, prints results on stdout and returns the exit code: 0 done, 2 asked
// wrongly, 130 stopped by a signal. What it throws is printed on stderr, with exit code 1.
//
// A thin cover over CLI11, whose headers take seconds to compile: only command.cpp includes them.

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace CLI {  // NOLINT(readability-identifier-naming)
class App;
}

namespace bonfire::tools {

constexpr int kAskedWrongly = 2;

class Command {
 public:
  Command(CLI::App& app, int& exit_code) : app_(&app), exit_code_(&exit_code) {}

  // A command of this one. Examples: one a line, the command and what it does.
  Command add(const std::string& name, const std::string& summary, const std::string& examples = {});

  void argument(const std::string& name, std::string& value, const std::string& meaning);  // must be given
  void optional_argument(const std::string& name, std::string& value, const std::string& meaning);
  void arguments(const std::string& name, std::vector<std::string>& values, const std::string& meaning);  // the rest

  void option(const std::string& name, bool& value, const std::string& meaning);  // "--json"
  void option(const std::string& name, std::string& value, const std::string& meaning);
  void option(const std::string& name, int64_t& value, const std::string& meaning);
  void option(const std::string& name, uint64_t& value, const std::string& meaning);
  void option(const std::string& name, double& value, const std::string& meaning);
  // One of these words; must be given.
  void choice(const std::string& name, std::string& value, const std::string& meaning,
              const std::vector<std::string>& choices);

  void takes_the_rest(std::vector<std::string>& rest);  // all after its own arguments, options too

  void runs(std::function<int()> action);

  // What can be typed after a command, for shells that complete words.
  struct Words {
    std::string command;             // "data pack"; "" for the program
    std::vector<std::string> words;  // commands and options
  };
  std::vector<Words> words() const;  // of this one and all inside it

 private:
  CLI::App* app_;
  int* exit_code_;
  std::vector<std::string>* rest_ = nullptr;
};

// Reads the arguments and runs the command they name; returns the exit code. A misspelt command or option is answered
// with the nearest right one.
int run_program(int argc, char** argv, const std::string& summary, const std::string& examples,
                const std::vector<void (*)(Command)>& commands);

}  // namespace bonfire::tools
