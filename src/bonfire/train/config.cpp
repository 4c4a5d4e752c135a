#include "bonfire/train/config.h"

#include <fmt/format.h>
#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <map>
#include <sstream>

#include "bonfire/base/error.h"
#include "bonfire/base/file.h"
#include "bonfire/base/nearest.h"
#include "bonfire/models/make.h"
#include "bonfire/train/config_keys.h"
#include "bonfire/train/known_words.h"

namespace bonfire::train {

namespace {

namespace fs = std::filesystem;

// One setting as it was written: the text of a scalar, or of each item of a list.
struct Setting {
  std::vector<std::string> items;
  bool is_list = false;
  std::string where;  // "configs/a.yaml:3" or "command line"
};
using Settings = std::map<std::string, Setting>;  // by the key's full name

// --- text ⇄ value --------------------------------------------------------------------------------------------------

template <class Number>
bool parse_number(const std::string& text, Number& value) {
  const char* end = text.data() + text.size();
  auto [stopped, error] = std::from_chars(text.data(), end, value);
  return error == std::errc() && stopped == end;
}

bool parse(const std::string& text, double& value) { return parse_number(text, value) && std::isfinite(value); }
bool parse(const std::string& text, uint64_t& value) { return parse_number(text, value); }
bool parse(const std::string& text, int64_t& value) { return parse_number(text, value); }
bool parse(const std::string& text, std::string& value) {
  value = text;
  return true;
}
bool parse(const std::string& text, bool& value) {
  std::string lower = text;
  std::transform(lower.begin(), lower.end(), lower.begin(), [](unsigned char c) { return std::tolower(c); });
  value = lower == "true" || lower == "yes" || lower == "on";
  return value || lower == "false" || lower == "no" || lower == "off";
}

std::string_view type_name(double) { return "a number"; }
std::string_view type_name(uint64_t) { return "a whole number from 0"; }
std::string_view type_name(int64_t) { return "a whole number"; }
std::string_view type_name(bool) { return "true or false"; }
std::string_view type_name(const std::string&) { return "text"; }

std::string print(double value) { return fmt::format("{}", value); }
std::string print(uint64_t value) { return fmt::format("{}", value); }
std::string print(int64_t value) { return fmt::format("{}", value); }
std::string print(bool value) { return value ? "true" : "false"; }
std::string print(const std::string& value) {
  YAML::Emitter out;
  out << YAML::DoubleQuoted << value;
  return out.c_str();
}

template <class T>
struct ItemOf {
  using Type = T;
  static constexpr bool kList = false, kOptional = false;
};
template <class T>
struct ItemOf<std::vector<T>> {
  using Type = T;
  static constexpr bool kList = true, kOptional = false;
};
template <class T>
struct ItemOf<std::optional<T>> {
  using Type = typename ItemOf<T>::Type;
  static constexpr bool kList = ItemOf<T>::kList, kOptional = true;
};

std::string joined(const std::vector<std::string_view>& words) { return fmt::format("{}", fmt::join(words, ", ")); }

// "at least 1", "above 0", "from 0 to 1"; empty when everything goes.
std::string range_text(const KeyOptions& options) {
  if (std::isfinite(options.most))
    return options.above ? fmt::format("above {}, at most {}", options.least, options.most)
                         : fmt::format("from {} to {}", options.least, options.most);
  if (std::isfinite(options.least)) return fmt::format("{} {}", options.above ? "above" : "at least", options.least);
  return {};
}

// --- reading -------------------------------------------------------------------------------------------------------

// Puts the settings into a Config, and strikes them off as it goes.
class Reader {
 public:
  explicit Reader(Settings& settings) : settings_(settings) {}

  void section(std::string_view) {}

  template <class T>
  void key(std::string_view name, T& value, std::string_view, const KeyOptions& options) {
    known_.emplace_back(name);
    auto found = settings_.find(std::string(name));
    if (found == settings_.end()) return;
    read(found->first, found->second, value, options);
    settings_.erase(found);
  }

  const std::vector<std::string>& known() const { return known_; }

 private:
  template <class T>
  static void read(const std::string& name, const Setting& setting, T& value, const KeyOptions& options) {
    using Kind = ItemOf<T>;
    if constexpr (Kind::kOptional) {
      if (!setting.is_list && setting.items[0] == options.empty) {
        value.reset();
        return;
      }
    }
    if (setting.is_list != Kind::kList && !(Kind::kList && setting.items.size() == 1))
      throw_error<ConfigError>("[config] {}: {} is {}, expected {}", setting.where, name,
                               setting.is_list ? "a list" : "one value", Kind::kList ? "a list" : "one value");
    std::vector<typename Kind::Type> items;
    for (const std::string& text : setting.items)
      items.push_back(read_item<typename Kind::Type>(name, setting, text, options, Kind::kOptional));
    if constexpr (Kind::kList) {
      value = std::move(items);
    } else {
      value = std::move(items[0]);
    }
  }

  template <class T>
  static T read_item(const std::string& name, const Setting& setting, const std::string& text,
                     const KeyOptions& options, bool may_be_empty) {
    T item{};
    if (!parse(text, item))
      throw_error<ConfigError>("[config] {}: {} is '{}', expected {}{}", setting.where, name, text, type_name(item),
                               may_be_empty ? fmt::format(" or {}", options.empty) : "");
    if constexpr (std::is_same_v<T, std::string>) {
      bool chosen = options.choices.empty() ||
                    std::find(options.choices.begin(), options.choices.end(), text) != options.choices.end();
      if (!chosen)
        throw_error<ConfigError>("[config] {}: {} is '{}', expected one of {}", setting.where, name, text,
                                 joined(options.choices));
    } else if constexpr (!std::is_same_v<T, bool>) {
      auto number = static_cast<double>(item);
      if (number < options.least || number > options.most || (options.above && number == options.least))
        throw_error<ConfigError>("[config] {}: {} is {}, expected {}", setting.where, name, text, range_text(options));
    }
    return item;
  }

  Settings& settings_;
  std::vector<std::string> known_;
};

// Other spellings: those of the VGG guide's file.
std::string canonical(std::string name) {
  static const std::map<std::string, std::string> kOther{{"batchsize", "batch_size"},   {"wd", "weight_decay"},
                                                         {"workers", "num_workers"},    {"save_frequency", "save_freq"},
                                                         {"log_frequency", "log_freq"}, {"eval_frequency", "eval_freq"},
                                                         {"data_path", "data"}};
  bool upper = std::none_of(name.begin(), name.end(), [](unsigned char c) { return std::islower(c) != 0; });
  if (!upper) return name;
  std::transform(name.begin(), name.end(), name.begin(), [](unsigned char c) { return std::tolower(c); });
  auto other = kOther.find(name);
  return other == kOther.end() ? name : other->second;
}

// Of text that is no settings: the first line of the form `key:value` is why, and says so.
void refuse_colons_without_space(const std::string& text, const std::string& name) {
  std::istringstream lines(text);
  std::string line;
  for (int number = 1; std::getline(lines, line); ++number) {
    line.erase(0, line.find_first_not_of(' '));
    const size_t colon = line.find(':');
    if (colon == 0 || colon == std::string::npos || colon + 1 == line.size()) continue;
    const bool is_key = std::all_of(line.begin(), line.begin() + static_cast<std::ptrdiff_t>(colon),
                                    [](unsigned char c) { return std::isalnum(c) != 0 || c == '_' || c == '.'; });
    if (is_key && std::isspace(static_cast<unsigned char>(line[colon + 1])) == 0)
      throw_error<ConfigError>("[config] {}:{}: there is no space after the colon of `{}`; write `{}: {}`", name,
                               number, line, line.substr(0, colon), line.substr(colon + 1));
  }
}

// The settings of one file, without what it includes.
class File {
 public:
  File(const std::string& text, std::string name) : name_(std::move(name)) {
    try {
      root_ = YAML::Load(text);
    } catch (const YAML::ParserException& error) {
      refuse_colons_without_space(text, name_);
      throw_error<ConfigError>("[config] {}:{}: {}", name_, error.mark.line + 1, error.msg);
    }
    if (!root_.IsNull() && !root_.IsMap()) {
      refuse_colons_without_space(text, name_);
      throw_error<ConfigError>("[config] {}: expected lines of the form `key: value` (with a space after the colon)",
                               name_);
    }
  }

  std::vector<std::string> includes() const {
    YAML::Node list = root_.IsMap() ? root_["include"] : YAML::Node();
    std::vector<std::string> names;
    if (list.IsDefined() && list.IsScalar()) names.push_back(list.as<std::string>());
    if (list.IsDefined() && list.IsSequence())
      for (const YAML::Node& one : list) names.push_back(text_of(one));
    return names;
  }

  void add_to(Settings& settings) const {
    Settings own;
    if (root_.IsMap()) add(root_, "", own);
    for (auto& [key, setting] : own) settings[key] = std::move(setting);
  }

 private:
  std::string at(const YAML::Node& node) const { return fmt::format("{}:{}", name_, node.Mark().line + 1); }

  std::string text_of(const YAML::Node& node) const {
    if (!node.IsScalar()) throw_error<ConfigError>("[config] {}: expected one value", at(node));
    return node.as<std::string>();
  }

  void add(const YAML::Node& map, const std::string& prefix, Settings& settings) const {
    for (const auto& entry : map) {
      std::string name = prefix + canonical(text_of(entry.first));
      if (name == "include") continue;
      if (entry.second.IsMap()) {
        add(entry.second, name + ".", settings);
        continue;
      }
      Setting setting = read(entry.second);
      setting.where = at(entry.first);
      auto [known, fresh] = settings.emplace(name, setting);
      if (!fresh && !means_the_same(known->second, setting))
        throw_error<ConfigError>("[config] {}: {} is given twice with different values (before at {})", setting.where,
                                 name, known->second.where);
    }
  }

  Setting read(const YAML::Node& node) const {
    if (node.IsNull()) return {{""}, false, {}};
    if (node.IsScalar()) return {{node.as<std::string>()}, false, {}};
    Setting list{{}, true, {}};
    for (const YAML::Node& one : node) list.items.push_back(text_of(one));
    return list;
  }

  // 5e-4 and 0.0005 do: the guide's file has both, under two names.
  static bool means_the_same(const Setting& a, const Setting& b) {
    double x = 0, y = 0;
    if (a.items.size() == 1 && b.items.size() == 1 && parse(a.items[0], x) && parse(b.items[0], y)) return x == y;
    return a.items == b.items;
  }

  std::string name_;
  YAML::Node root_;
};

std::string read_text(const fs::path& path) {
  std::error_code ignored;
  if (!fs::is_regular_file(path, ignored))
    throw_error<ConfigError>("[config] there is no file {}; {}", path.string(),
                             path.filename() == "config.yaml"
                                 ? fmt::format("'{}' is not the folder of a run", path.parent_path().string())
                                 : "expected a YAML file, then settings as key=value");
  std::vector<std::byte> bytes = base::read_file(path.string());
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

void collect(const std::string& text, const std::string& name, Settings& settings, int depth = 0) {
  constexpr int kDeepest = 16;
  if (depth > kDeepest) throw_error<ConfigError>("[config] {}: files include each other in a circle", name);
  File file(text, name);
  for (const std::string& other : file.includes()) {
    fs::path path = fs::path(name).parent_path() / other;
    collect(read_text(path), path.string(), settings, depth + 1);
  }
  file.add_to(settings);
}

void add_override(const std::string& text, Settings& settings) {
  size_t equals = text.find('=');
  if (equals == std::string::npos || equals == 0)
    throw_error<ConfigError>("[config] '{}' on the command line, expected key=value", text);
  std::string name = text.substr(0, equals), value = text.substr(equals + 1);
  Setting setting{{value}, false, "command line"};
  if (value.size() >= 2 && value.front() == '[' && value.back() == ']') {
    setting = {{}, true, "command line"};
    for (const YAML::Node& one : YAML::Load(value)) setting.items.push_back(one.as<std::string>());
  }
  settings[canonical(name)] = std::move(setting);
}

// Of a key that there is not: a word of another program, a key of a section without its section, or misspelt.
std::string what_it_is_called(const std::string& name, std::vector<std::string> keys) {
  std::string ours = our_key_for(name), inside = "strategy." + name;
  if (ours.empty() && std::ranges::find(keys, inside) != keys.end()) ours = inside;
  if (!ours.empty()) return fmt::format("here it is '{}'", ours);
  for (const auto& [theirs, key] : words_of_others()) keys.emplace_back(theirs);
  std::string nearest = base::nearest(name, keys);
  if (std::string known = our_key_for(nearest); !known.empty()) nearest = known;
  return fmt::format("the nearest is '{}' (`bonfire config` has them all)", nearest);
}

Config finish(Settings& settings, std::span<const std::string> overrides) {
  for (const std::string& text : overrides) add_override(text, settings);
  Config config;
  Reader reader(settings);
  visit_keys(config, reader);
  if (settings.empty()) return config;
  const auto& [name, setting] = *settings.begin();
  throw_error<ConfigError>("[config] {}: there is no key '{}'; {}", setting.where, name,
                           what_it_is_called(name, reader.known()));
}

// --- writing -------------------------------------------------------------------------------------------------------

template <class T>
std::string print_any(const T& value, std::string_view empty) {
  using Kind = ItemOf<T>;
  if constexpr (Kind::kOptional) {
    return value ? print_any(*value, empty) : std::string(empty);
  } else if constexpr (Kind::kList) {
    std::vector<std::string> items;
    for (const auto& item : value) items.push_back(print(item));
    return fmt::format("[{}]", fmt::join(items, ", "));
  } else {
    return print(value);
  }
}

class YamlWriter {
 public:
  void section(std::string_view title) {
    text_ += fmt::format("{}# {}\n", text_.empty() ? "" : "\n", title);
    nested_ = false;
  }

  template <class T>
  void key(std::string_view name, const T& value, std::string_view, const KeyOptions& options) {
    constexpr std::string_view kNested = "strategy.";
    bool nested = name.starts_with(kNested);
    if (nested && !nested_) text_ += "strategy:\n";
    nested_ = nested;
    if (nested) name = name.substr(kNested.size());
    text_ += fmt::format("{}{}: {}\n", nested ? "  " : "", name, print_any(value, options.empty));
  }

  std::string take() { return std::move(text_); }

 private:
  std::string text_;
  bool nested_ = false;
};

const std::string kReferenceHead =
    "# Configuration\n\n"
    "Every key of a YAML file for `bonfire train FILE`, and of `bonfire train key=value`. This page is what `bonfire "
    "config` prints.\n\n"
    "`include: other.yaml` (or a list) begins from other files, found beside the one that names them. A key given "
    "later "
    "wins: included files, then the file, then the command line. Keys that `bonfire train` cannot follow yet are "
    "errors, "
    "not ignored, but for `pin_memory`.\n";

class ReferenceWriter {
 public:
  void section(std::string_view title) {
    text_ += fmt::format("\n## {}\n\n| key | default | may be | meaning |\n| --- | --- | --- | --- |\n", title);
  }

  template <class T>
  void key(std::string_view name, const T& value, std::string_view meaning, const KeyOptions& options) {
    using Kind = ItemOf<T>;
    std::string kind =
        options.choices.empty() ? std::string(type_name(typename Kind::Type{})) : joined(options.choices);
    if (Kind::kList) kind = "a list of: " + kind;
    if (std::string range = range_text(options); !range.empty()) kind += ", " + range;
    if (Kind::kOptional) kind += fmt::format("; or {}", options.empty);
    text_ += fmt::format("| `{}` | `{}` | {} | {} |\n", name, print_any(value, options.empty), kind, meaning);
  }

  std::string take() { return std::move(text_); }

 private:
  std::string text_;
};

class KeyLister {
 public:
  void section(std::string_view) {}
  template <class T>
  void key(std::string_view name, const T&, std::string_view, const KeyOptions& options) {
    std::vector<std::string> values(options.choices.begin(), options.choices.end());
    if (std::is_same_v<T, bool>) values = {"true", "false"};
    keys.emplace_back(name, std::move(values));
  }
  std::vector<std::pair<std::string, std::vector<std::string>>> keys;
};

}  // namespace

std::vector<std::string_view> model_names() {
  static const std::vector<std::string> all = models::names();
  return {all.begin(), all.end()};
}

Config parse_config(const std::string& yaml, const std::string& name, std::span<const std::string> overrides) {
  Settings settings;
  collect(yaml, name, settings);
  return finish(settings, overrides);
}

Config load_config(const fs::path& path, std::span<const std::string> overrides) {
  return parse_config(read_text(path), path.string(), overrides);
}

Config default_config(std::span<const std::string> overrides) {
  Settings settings;
  return finish(settings, overrides);
}

std::vector<Device> places_of(const Config& config) {
  if (config.place == "auto") return {default_device()};
  std::vector<Device> places;
  for (size_t begin = 0, end = 0; end != std::string::npos; begin = end + 1) {
    end = config.place.find(',', begin);
    std::string name = config.place.substr(begin, end - begin);
    name.erase(0, name.find_first_not_of(' '));
    places.push_back(parse_device(name));
  }
  if (places.size() > 1 && config.num_gpus > 1)
    throw_error<ConfigError>(
        "[train] place names {} devices for one process, and num_gpus asks for {} processes; leave one of them out",
        places.size(), config.num_gpus);
  return places;
}

std::string to_yaml(const Config& config) {
  YamlWriter writer;
  visit_keys(config, writer);
  return writer.take();
}

std::string config_reference() {
  ReferenceWriter writer;
  const Config defaults;
  visit_keys(defaults, writer);
  return kReferenceHead + writer.take();
}

std::vector<std::pair<std::string, std::vector<std::string>>> config_keys() {
  KeyLister lister;
  const Config defaults;
  visit_keys(defaults, lister);
  return lister.keys;
}

}  // namespace bonfire::train
