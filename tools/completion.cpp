#include <fmt/format.h>

#include <cstdio>
#include <memory>

#include "bonfire/train/config.h"
#include "tools/command.h"

namespace bonfire::tools {

namespace {

// `key=` is one word to a person and three to bash, which breaks words at the equals sign.
constexpr std::string_view kFunction = R"(
_bonfire() {{
  local current=${{COMP_WORDS[COMP_CWORD]}} before=${{COMP_WORDS[COMP_CWORD-1]}} key= command= words= i
  [ "$current" != = ] || {{ key=$before; current=; }}
  [ "$before" != = ] || key=${{COMP_WORDS[COMP_CWORD-2]}}
  for ((i = 1; i < COMP_CWORD; ++i)); do
    case "${{command:+$command }}${{COMP_WORDS[i]}}" in {}) command="${{command:+$command }}${{COMP_WORDS[i]}}" ;; esac
  done
  case $key in
{}    ?*) ;;
    *)
      case $command in
{}      esac
      ;;
  esac
  COMPREPLY=()
  for i in $(compgen -W "$words" -- "$current"); do
    case $i in *=) COMPREPLY+=("$i") ;; *) COMPREPLY+=("$i ") ;; esac
  done
  if [ -n "$command" ] && [ ${{#COMPREPLY[@]}} -eq 0 ]; then
    compopt -o filenames +o nospace 2>/dev/null
    while IFS= read -r i; do COMPREPLY+=("$i"); done < <(compgen -f -- "$current")
  fi
}}
complete -o nospace -F _bonfire bonfire ./bonfire
)";

std::string script(const Command& program) {
  std::string keys, choices, commands, cases;
  for (const auto& [key, values] : train::config_keys()) {
    keys += key + "= ";
    if (!values.empty()) choices += fmt::format("    {}) words='{}' ;;\n", key, fmt::join(values, " "));
  }
  for (const Command::Words& one : program.words()) {
    if (!one.command.empty()) commands += fmt::format("{}'{}'", commands.empty() ? "" : "|", one.command);
    bool takes_settings = one.command == "train" || one.command == "eval" || one.command == "inspect";
    cases += fmt::format("        '{}') words='{}{}' ;;\n", one.command, takes_settings ? keys : "",
                         fmt::join(one.words, " "));
  }
  return fmt::format(kFunction, commands, choices, cases);
}

int run(const Command& program, const std::string& shell) {
  const char* head = shell == "zsh" ? "autoload -U +X compinit && compinit\nautoload -U +X bashcompinit && bashcompinit"
                                    : "# source <(bonfire completion bash)";
  return std::printf("%s%s", head, script(program).c_str()) < 0 ? 1 : 0;
}

}  // namespace

void add_completion(Command program) {
  Command command = program.add("completion", "Prints a script with which a shell completes commands and settings",
                                "source <(bonfire completion bash)     in this shell; or in ~/.bashrc for all\n"
                                "source <(bonfire completion zsh)      the same for zsh");
  auto shell = std::make_shared<std::string>();
  command.choice("shell", *shell, "bash or zsh", {"bash", "zsh"});
  command.runs([program, shell] { return run(program, *shell); });
}

}  // namespace bonfire::tools
