#include <fmt/format.h>

#include <cstdio>
#include <memory>

#include "bonfire/train/config/config.h"
#include "tools/command.h"

namespace bonfire::tools {

namespace {

// Both take: the commands, the values of each key, the words after each command.
// `key=` is one word to a person and three to bash, which breaks words at the equals sign.
constexpr std::string_view kBash = R"(# source <(bonfire completion bash)
_bonfire() {{
  local current=${{COMP_WORDS[COMP_CWORD]}} before=${{COMP_WORDS[COMP_CWORD-1]}} key= command= list= i
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
  for i in $(compgen -W "$list" -- "$current"); do
    case $i in *=) COMPREPLY+=("$i") ;; *) COMPREPLY+=("$i ") ;; esac
  done
  if [ -n "$command" ] && [ ${{#COMPREPLY[@]}} -eq 0 ]; then
    compopt -o filenames +o nospace 2>/dev/null
    while IFS= read -r i; do COMPREPLY+=("$i"); done < <(compgen -f -- "$current")
  fi
}}
complete -o nospace -F _bonfire bonfire ./bonfire
)";

constexpr std::string_view kZsh = R"(# source <(bonfire completion zsh)
(( $+functions[compdef] )) || {{ autoload -Uz compinit && compinit; }}
_bonfire() {{
  local key= command= list= i
  for ((i = 2; i < CURRENT; ++i)); do
    case "${{command:+$command }}${{words[i]}}" in {}) command="${{command:+$command }}${{words[i]}}" ;; esac
  done
  [[ ${{words[CURRENT]}} != ?*=* ]] || {{ key=${{words[CURRENT]%%=*}}; compset -P '*='; }}
  case $key in
{}    ?*) ;;
    *)
      case $command in
{}      esac
      ;;
  esac
  local -a all=(${{=list}}) keys rest
  keys=(${{(M)all:#*=}}) rest=(${{all:#*=}})
  local matches=0
  if compadd -S '' -a keys; then matches=1; fi
  if compadd -a rest; then matches=1; fi
  if [[ -n $command ]] && (( ! matches )); then _files; fi
}}
compdef _bonfire bonfire
)";

std::string script(const Command& program, const std::string& shell) {
  std::string keys, choices, commands, cases;
  for (const auto& [key, values] : train::config_keys()) {
    keys += key + "= ";
    if (!values.empty()) choices += fmt::format("    {}) list='{}' ;;\n", key, fmt::join(values, " "));
  }
  for (const Command::Words& one : program.words()) {
    if (!one.command.empty()) commands += fmt::format("{}'{}'", commands.empty() ? "" : "|", one.command);
    bool takes_settings = one.command == "train" || one.command == "eval" || one.command == "inspect";
    cases += fmt::format("        '{}') list='{}{}' ;;\n", one.command, takes_settings ? keys : "",
                         fmt::join(one.words, " "));
  }
  return fmt::format(fmt::runtime(shell == "zsh" ? kZsh : kBash), commands, choices, cases);
}

int run(const Command& program, const std::string& shell) {
  return std::printf("%s", script(program, shell).c_str()) < 0 ? 1 : 0;
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
