#include "bonfire/train/config/config.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <cstdlib>
#include <map>
#include <sstream>

#include "bonfire/base/error.h"
#include "bonfire/base/file.h"
#include "bonfire/base/nearest.h"
#include "bonfire/base/program_name.h"
#include "bonfire/models/make.h"
#include "bonfire/train/config/config_keys.h"
#include "bonfire/train/config/config_rules.h"
#include "bonfire/train/config/config_values.h"
#include "bonfire/train/config/foreign_keys.h"

namespace bonfire::train {

namespace {

namespace fs = std::filesystem;
using namespace config_values;

// One setting as it was written: the text of a scalar, or of each item of a list.
struct Setting {
  std::vector<std::string> items;
  bool is_list = false;
  std::string where;  // "configs/a.yaml:3" or "command line"
};
using Settings = std::map<std::string, Setting>;  // by the key's full name

// --- reading -------------------------------------------------------------------------------------------------------

// Puts the settings into a Config, and strikes them off as it goes.
class Reader {
 public:
  explicit Reader(Settings& settings) : settings_(settings) {}

  void section(std::string_view) {}

  template <class T>
  void key(std::string_view name, T& value, std::string_view, const KeyOptions& options) {
    known_.emplace_back(name);
    if constexpr (ItemOf<T>::kMap) {
      read_map(std::string(name) + ".", value, options);
    } else {
      auto found = settings_.find(std::string(name));
      if (found == settings_.end()) return;
      given_.emplace_back(name);
      read(found->first, found->second, value, options);
      settings_.erase(found);
    }
  }
  const std::vector<std::string>& given() const { return given_; }

  const std::vector<std::string>& known() const { return known_; }

 private:
  template <class T>
  void read_map(const std::string& prefix, std::map<std::string, T>& value, const KeyOptions& options) {
    const std::string name = prefix.substr(0, prefix.size() - 1);
    if (auto one = settings_.find(name); one != settings_.end())
      throw_error<ConfigError>("[config] {}: {} is one value, expected a map: {{name: value, name: value}}",
                               one->second.where, name);
    for (auto next = settings_.lower_bound(prefix);
         next != settings_.end() && next->first.starts_with(prefix) && next->first != prefix;
         next = settings_.erase(next)) {
      if (value.empty()) given_.push_back(prefix.substr(0, prefix.size() - 1));
      read(next->first, next->second, value[next->first.substr(prefix.size())], options);
    }
  }

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
      value = typename Kind::Type(std::move(items[0]));
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
    } else if constexpr (std::is_arithmetic_v<T> && !std::is_same_v<T, bool>) {
      auto number = static_cast<double>(item);
      if (number < options.least || number > options.most || (options.above && number == options.least) ||
          (options.below && number == options.most))
        throw_error<ConfigError>("[config] {}: {} is {}, expected {}", setting.where, name, text, range_text(options));
    }
    return item;
  }

  Settings& settings_;
  std::vector<std::string> known_, given_;
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

// A line, or what was read as a key, of the form `key:value`.
void refuse_colon_without_space(const std::string& line, const std::string& where) {
  const size_t colon = line.find(':');
  if (colon == 0 || colon == std::string::npos || colon + 1 == line.size()) return;
  const bool is_key = std::all_of(line.begin(), line.begin() + static_cast<std::ptrdiff_t>(colon),
                                  [](unsigned char c) { return std::isalnum(c) != 0 || c == '_' || c == '.'; });
  if (is_key && std::isspace(static_cast<unsigned char>(line[colon + 1])) == 0)
    throw_error<ConfigError>("[config] {}: there is no space after the colon of `{}`; write `{}: {}`", where, line,
                             line.substr(0, colon), line.substr(colon + 1));
}

// Of text that is no settings: the first such line is why, and says so.
void refuse_colons_without_space(const std::string& text, const std::string& name) {
  std::istringstream lines(text);
  std::string line;
  for (int number = 1; std::getline(lines, line); ++number) {
    line.erase(0, line.find_first_not_of(' '));
    refuse_colon_without_space(line, fmt::format("{}:{}", name, number));
  }
}

// The settings of one file, without what it includes.
class File {
 public:
  File(const std::string& text, std::string name) : name_(std::move(name)) {
    try {
      std::vector<YAML::Node> documents = YAML::LoadAll(text);
      if (documents.size() > 1)
        throw_error<ConfigError>(
            "[config] {}:{}: a second document begins here (after a line ---), expected one; put both into one, or "
            "into two files of which one includes the other",
            name_, documents[1].Mark().line + 1);
      if (!documents.empty()) root_ = documents[0];
    } catch (const YAML::Exception& error) {
      refuse_colons_without_space(text, name_);
      throw_error<ConfigError>("[config] {}:{}: {}", name_, error.mark.line + 1, error.msg);
    }
    if (!root_.IsNull() && !root_.IsMap()) {
      refuse_colons_without_space(text, name_);
      throw_error<ConfigError>("[config] {}: expected lines of the form `key: value` (with a space after the colon)",
                               name_);
    }
  }

  struct Include {
    std::string file;
    std::string where;  // "a.yaml:3"
  };
  std::vector<Include> includes() const {
    std::vector<Include> files;
    if (!root_.IsMap() || !root_["include"].IsDefined()) return files;
    YAML::Node list = root_["include"];
    if (list.IsMap() || list.IsNull())
      throw_error<ConfigError>("[config] {}: include names no file, expected one or a list of them", at(list));
    if (list.IsScalar()) files.push_back({list.as<std::string>(), at(list)});
    if (list.IsSequence())
      for (const YAML::Node& one : list) files.push_back({text_of(one), at(one)});
    return files;
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
      refuse_colon_without_space(text_of(entry.first), at(entry.first));
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

// What to do where there is no such file.
std::string advice_on(const fs::path& path) {
  if (path.filename() == "config.yaml")
    return fmt::format("'{}' is not the folder of a run", path.parent_path().string());
  return "expected a YAML file, then settings as key=value";
}

std::string read_text(const fs::path& path, const std::string& included_at = {}) {
  if (base::kind_of(path) != base::PathKind::file)
    throw_error<ConfigError>("[config] there is no file {}; {}", path.string(),
                             included_at.empty() ? advice_on(path) : included_at + " includes it");
  std::vector<std::byte> bytes = base::read_file(path.string());
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

void collect(const std::string& text, const std::string& name, Settings& settings, int depth = 0) {
  constexpr int kDeepest = 16;
  if (depth > kDeepest) throw_error<ConfigError>("[config] {}: files include each other in a circle", name);
  File file(text, name);
  for (const File::Include& other : file.includes()) {
    fs::path path = fs::path(name).parent_path() / other.file;
    collect(read_text(path, other.where), path.string(), settings, depth + 1);
  }
  file.add_to(settings);
}

void add_override(const std::string& text, Settings& settings);

// {features: cpu:0, classifier: cpu:1} stands for all that files say of that section.
void add_map(const std::string& name, const std::string& value, Settings& settings) try {
  std::erase_if(settings, [&](const auto& setting) { return setting.first.starts_with(name + "."); });
  for (const auto& entry : YAML::Load(value))
    add_override(fmt::format("{}.{}={}", name, entry.first.as<std::string>(), entry.second.as<std::string>()),
                 settings);
} catch (const YAML::Exception&) {
  throw_error<ConfigError>("[config] command line: {} is '{}', expected a map: {{key: value, key: value}}", name,
                           value);
}

void add_override(const std::string& text, Settings& settings) {
  size_t equals = text.find('=');
  if (equals == std::string::npos || equals == 0)
    throw_error<ConfigError>("[config] '{}' on the command line, expected key=value", text);
  std::string name = text.substr(0, equals), value = text.substr(equals + 1);
  if (value.starts_with('{') && value.ends_with('}')) return add_map(canonical(name), value, settings);
  Setting setting{{value}, false, "command line"};
  if (value.size() >= 2 && value.front() == '[' && value.back() == ']') try {
      setting = {{}, true, "command line"};
      for (const YAML::Node& one : YAML::Load(value)) setting.items.push_back(one.as<std::string>());
    } catch (const YAML::Exception&) {
      throw_error<ConfigError>("[config] command line: {} is '{}', expected a list: [1, 2, 3]", name, value);
    }
  settings[canonical(name)] = std::move(setting);
}

// Those of PaddlePaddle that stand for a key. They win over files, and the command line wins over them.
void add_environment(Settings& settings) {
  for (const auto& [variable, option] : kStrategyVariables)
    if (const char* value = std::getenv(variable); value != nullptr && *value != '\0')
      settings["strategy." + std::string(option)] = {{value}, false, std::string(variable) + " in the environment"};
}

// Of a key that there is not: a section, a key of a section without its section, a word of another program, or
// misspelt.
std::string what_it_is_called(const std::string& name, std::vector<std::string> keys) {
  auto inner = std::ranges::find_if(keys, [&](const std::string& key) { return key.starts_with(name + "."); });
  if (inner != keys.end())
    return fmt::format("it is a section, whose settings have values: {}=... (`{} config` has them all)", *inner,
                       base::program_name());
  std::string ours = our_key_for(name), inside = "strategy." + name;
  if (ours.empty() && std::ranges::find(keys, inside) != keys.end()) ours = inside;
  if (!ours.empty()) return fmt::format("here it is '{}'", ours);
  for (const auto& [theirs, key] : foreign_keys()) keys.emplace_back(theirs);
  std::string nearest = base::nearest(name, keys);
  if (std::string known = our_key_for(nearest); !known.empty()) nearest = known;
  return fmt::format("the nearest is '{}' (`{} config` has them all)", nearest, base::program_name());
}

[[noreturn]] void refuse_unknown(const Settings& settings, const std::vector<std::string>& keys) {
  const auto& [name, setting] = *settings.begin();
  if (is_planned_key(name))
    throw_error<ConfigError>("[config] {}: {} is not available yet; leave it out", setting.where, name);
  throw_error<ConfigError>("[config] {}: there is no key '{}'; {}", setting.where, name, what_it_is_called(name, keys));
}

Config read(Settings& settings) {
  Config config;
  const bool gives_schedule = settings.contains("schedule");
  Reader reader(settings);
  visit_keys(config, reader);
  config.given = reader.given();
  if (!settings.empty()) refuse_unknown(settings, reader.known());
  if (!gives_schedule && !config.milestones.empty()) config.schedule = "multi_step";
  return config;
}

Config finish(Settings& settings, std::span<const std::string> overrides) {
  add_environment(settings);
  for (const std::string& text : overrides) add_override(text, settings);
  auto momentum = settings.find("momentum");
  const std::string momentum_given_at = momentum == settings.end() ? "" : momentum->second.where;
  Config config = read(settings);
  // Even where it is the default: whoever writes `optimizer: sgd` beside it expects it to count.
  if (!momentum_given_at.empty() && !has_momentum(config) && config.momentum != 0)
    throw_error<ConfigError>("[config] {}: {} has no momentum; choose optimizer: momentum, or leave momentum out",
                             momentum_given_at, config.optimizer);
  if (config.resume.empty()) check_config(config);
  return config;
}

// --- writing -------------------------------------------------------------------------------------------------------

template <class T>
std::string print_any(const T& value, std::string_view empty) {
  using Kind = ItemOf<T>;
  if constexpr (Kind::kOptional) {
    return value ? print_any(*value, empty) : std::string(empty);
  } else if constexpr (Kind::kMap) {
    std::vector<std::string> items;
    for (const auto& [key, item] : value) items.push_back(fmt::format("{}: {}", print(key), print(item)));
    return fmt::format("{{{}}}", fmt::join(items, ", "));
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
  YamlWriter(const Config& config, std::span<const std::string_view> without)
      : without_(without), has_momentum_(has_momentum(config)) {}

  void section(std::string_view title) {
    text_ += fmt::format("{}# {}\n", text_.empty() ? "" : "\n", title);
    map_ = {};
  }

  template <class T>
  void key(std::string_view name, const T& value, std::string_view, const KeyOptions& options) {
    if (std::ranges::find(without_, name) != without_.end()) return;
    if (name == "momentum" && !has_momentum_) return;  // an optimizer without one refuses it
    const std::string text = print_any(value, options.empty);
    // A run's configuration is the run's, whichever way it was gone on with.
    if ((name == "resume" && text == "\"\"") || (name == "resume_anyway" && text == "false")) return;
    const size_t dot = name.find('.');
    const std::string_view map = dot == std::string_view::npos ? std::string_view() : name.substr(0, dot);
    if (!map.empty() && map != map_) text_ += fmt::format("{}:\n", map);
    map_ = map;
    if (!map.empty()) name = name.substr(dot + 1);
    text_ += fmt::format("{}{}: {}\n", map.empty() ? "" : "  ", name, text);
  }

  std::string take() { return std::move(text_); }

 private:
  std::string text_;
  std::span<const std::string_view> without_;
  std::string_view map_;  // that is being written
  bool has_momentum_;
};

const std::string kReferenceHead =
    "# Configuration\n\n"
    "Every key of a YAML file for `bonfire train FILE`, and of `bonfire train key=value`. This page is what `bonfire "
    "config` prints.\n\n"
    "`include: other.yaml` (or a list) begins from other files, found beside the one that names them. A key given "
    "later wins: included files, then the file, then the environment, then the command line. A setting that would have "
    "no effect beside the others (`gamma` without `schedule: multi_step`), that is not available yet or that this "
    "machine cannot follow is an error, not ignored, but for `pin_memory`, of which a note tells.\n";

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
    if (Kind::kMap) kind = "a map to: " + kind;
    if (std::string range = range_text(options); !range.empty()) kind += ", " + range;
    if (Kind::kOptional) kind += fmt::format("; or {}", options.empty);
    text_ += fmt::format("| `{}` | `{}` | {} | {} |\n", name, print_any(value, options.empty), kind, meaning);
  }

  std::string take() { return std::move(text_); }

 private:
  std::string text_;
};

class SettingLister {
 public:
  void section(std::string_view) {}
  template <class T>
  void key(std::string_view name, const T& value, std::string_view, const KeyOptions& options) {
    settings.emplace_back(name, print_any(value, options.empty));
  }
  std::vector<std::pair<std::string, std::string>> settings;
};

class Chooser {
 public:
  void section(std::string_view) {}
  template <class T>
  void key(std::string_view name, T& value, std::string_view, const KeyOptions&) {
    if constexpr (requires { value.chosen; }) value.chosen |= name != "strategy.num_threads";
  }
};

class KeyLister {
 public:
  void section(std::string_view) {}
  template <class T>
  void key(std::string_view name, const T&, std::string_view, const KeyOptions& options) {
    std::vector<std::string> values(options.choices.begin(), options.choices.end());
    if (std::is_same_v<typename ItemOf<T>::Type, bool>) values = {"true", "false"};
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

Config parse_config_of_run(const std::string& yaml, const std::string& name) {
  Settings settings;
  collect(yaml, name, settings);
  return read(settings);
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

std::vector<nn::Split> splits_of(const Config& config) {
  std::vector<nn::Split> splits;
  for (const auto& [path, split] : config.tensor_split)
    splits.push_back({path, static_cast<int>(split.axis), split.blocks});
  return splits;
}

MeshSizes mesh_of(const Config& config) {
  constexpr std::string_view kUsual = "tensor, data, pipeline";
  const MeshConfig& given = config.mesh;
  MeshSizes sizes{.data = static_cast<int>(given.data.value_or(0)),
                  .pipeline = static_cast<int>(given.pipeline),
                  .tensor = static_cast<int>(given.tensor)};
  for (size_t i = 0; i < kAxes; ++i) {
    const std::string name = name_of(static_cast<Axis>(i));
    auto found = std::ranges::find(given.order, name);
    if (given.order.size() != kAxes || found == given.order.end())
      throw_error<ConfigError>("[config] mesh.order is [{}], expected data, pipeline and tensor, each once: [{}]",
                               fmt::join(given.order, ", "), kUsual);
    sizes.order.at(static_cast<size_t>(found - given.order.begin())) = static_cast<Axis>(i);
  }
  return sizes;
}

int64_t chunks_of(const Config& config) {
  return config.pipeline.chunks.value_or(config.pipeline.schedule == "interleaved" ? 2 : 1);
}

int64_t micro_batches_of(const Config& config, int64_t ranks) {
  constexpr int64_t kOfRank = 4;
  return config.pipeline.micro_batches.value_or(std::min(config.batch_size, kOfRank * ranks));
}

std::string to_yaml(const Config& config, std::span<const std::string_view> without) {
  YamlWriter writer(config, without);
  visit_keys(config, writer);
  return writer.take();
}

std::vector<std::pair<std::string, std::string>> settings_of(const Config& config) {
  SettingLister lister;
  visit_keys(config, lister);
  return lister.settings;
}

DistributedStrategy chosen_strategy(Config config) {
  Chooser chooser;
  visit_keys(config, chooser);
  return config.strategy;
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
