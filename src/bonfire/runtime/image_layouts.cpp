#include "bonfire/runtime/image_layouts.h"

#include <algorithm>
#include <limits>
#include <map>

#include "bonfire/base/error.h"
#include "bonfire/runtime/tuning.h"

namespace bonfire::runtime {

namespace {

constexpr double kNever = std::numeric_limits<double>::infinity();

GraphValue output_of(const GraphNode& node, size_t index) {
  return {const_cast<GraphNode*>(&node), static_cast<int>(index)};
}

// A node that touches images.
struct Place {
  const GraphNode* node;
  std::vector<double> times;               // nanoseconds in each layout; kNever where it has no candidate
  bool cheap = true;                       // hardly more than a reorder: follows its neighbours
  std::vector<int> neighbours;             // places that share an image
  std::vector<Candidate> candidates = {};  // in all layouts
  std::vector<int> layout_of = {};         // [candidate]
  int64_t height = 0, width = 0;           // of its first image
};

// An image: who makes it and who reads it. -1: somebody who gives or wants it in a certain layout.
struct Image {
  TensorSpec spec;
  int maker = -1;
  std::vector<int> readers;
  int given = 0;            // the layout, where there is no maker
  std::vector<int> wanted;  // [readers]: the layout where it is -1
};

class Search {
 public:
  Search(const Graph& graph, const GivenLayouts& given, const ParameterValues& parameters, bool fast_math)
      : graph_(graph), given_(given), parameters_(parameters), fast_math_(fast_math) {}

  NodeLayouts run() {
    collect_places();
    collect_images();
    if (places_.empty()) return {};
    fill_reorder_table();
    std::vector<int> labels = best_uniform();
    for (int sweep = 0; sweep < kMostSweeps && improve(labels); ++sweep) {
    }
    NodeLayouts result;
    for (size_t i = 0; i < places_.size(); ++i) result[places_[i].node] = layouts_[static_cast<size_t>(labels[i])];
    return result;
  }

 private:
  static constexpr int kMostSweeps = 6;

  bool touches_images(const GraphNode& node) const {
    bool any = std::any_of(node.inputs.begin(), node.inputs.end(),
                           [&](const GraphValue& input) { return parameters_.is_image(input); });
    for (size_t i = 0; i < node.outputs.size(); ++i) any |= parameters_.is_image(output_of(node, i));
    return any;
  }

  // Layouts that are worth looking at: row-major, channels last, and what candidates ask for beyond these.
  int number_of(const Layout& layout) {
    auto found = std::find(layouts_.begin(), layouts_.end(), layout);
    if (found == layouts_.end()) found = layouts_.insert(found, layout);
    return static_cast<int>(found - layouts_.begin());
  }

  void collect_places() {
    for (const GraphNode& node : graph_.nodes()) {
      if (node.is_input() || node.op->has(Trait::view) || !touches_images(node)) continue;
      std::vector<Layout> arriving(node.inputs.size());
      for (const Candidate& candidate : candidates_for({node, arriving, fast_math_}))
        for (size_t i = 0; i < node.inputs.size(); ++i)
          if (parameters_.is_image(node.inputs[i])) number_of(candidate.input_layouts[i]);
      place_of_[&node] = static_cast<int>(places_.size());
      places_.push_back({.node = &node, .times = {}, .neighbours = {}});
    }
    collect_given();
    for (Place& place : places_) collect_candidates(place);
    std::vector<TimedNode> timed;
    for (const Place& place : places_)
      if (!has_one_kernel(place)) timed.push_back({place.node, place.candidates});
    share_out_timing(timed);
    for (Place& place : places_) time_layouts(place);
  }

  // Layouts in which images come and go.
  void collect_given() {
    for (const GraphNode& node : graph_.nodes())
      if (node.is_input() && parameters_.is_image(output_of(node, 0))) number_of(given_.of_leaf(node));
    for (size_t i = 0; i < graph_.outputs.size(); ++i)
      if (const std::optional<Layout> wanted = given_.of_output(i); wanted && parameters_.is_image(graph_.outputs[i]))
        number_of(*wanted);
  }

  void collect_candidates(Place& place) {
    const GraphNode& node = *place.node;
    for (size_t l = 0; l < layouts_.size(); ++l) {
      std::vector<Layout> arriving(node.inputs.size());
      for (size_t i = 0; i < node.inputs.size(); ++i)
        if (parameters_.is_image(node.inputs[i])) arriving[i] = layouts_[l];
      for (Candidate& candidate : candidates_for({node, arriving, fast_math_})) {
        if (!keeps_images_as(parameters_, node, candidate, layouts_[l])) continue;
        place.candidates.push_back(std::move(candidate));
        place.layout_of.push_back(static_cast<int>(l));
      }
    }
  }

  static bool has_one_kernel(const Place& place) {
    const std::vector<Candidate>& all = place.candidates;
    return std::all_of(all.begin(), all.end(), [&](const Candidate& c) { return c.name == all[0].name; });
  }

  void time_layouts(Place& place) {
    place.times.assign(layouts_.size(), kNever);
    std::vector<double> times;
    if (!has_one_kernel(place)) times = candidate_times(*place.node, place.candidates);
    for (size_t i = 0; i < place.candidates.size(); ++i) {
      double& best = place.times[static_cast<size_t>(place.layout_of[i])];
      best = std::min(best, times.empty() ? 0 : times[i]);
    }
    if (place.candidates.empty()) place.times[0] = 0;  // it asks for a mixture: its images come and go row-major
    // Less than this is no reason to reorder: times vary as much from run to run.
    constexpr double kAsGood = 1.05;
    double best = *std::min_element(place.times.begin(), place.times.end());
    for (double& time : place.times)
      if (time <= kAsGood * best) time = best;
  }

  void collect_images() {
    for (const GraphNode& node : graph_.nodes())
      for (size_t i = 0; i < node.outputs.size(); ++i)
        if (GraphValue value = output_of(node, i); parameters_.is_image(value)) add_image(value);
  }

  void add_image(const GraphValue& value) {
    Image image{.spec = value.spec(), .readers = {}, .wanted = {}};
    auto place_of = [&](const GraphNode* node) {
      auto found = place_of_.find(node);
      return found == place_of_.end() ? -1 : found->second;
    };
    image.maker = place_of(value.node);
    if (value.node->is_input()) image.given = number_of(given_.of_leaf(*value.node));
    auto add_reader = [&](int place, int wanted) {
      image.readers.push_back(place);
      image.wanted.push_back(wanted);
    };
    for (const GraphNode* user : graph_.users(value)) add_reader(place_of(user), 0);
    for (size_t i = 0; i < graph_.outputs.size(); ++i)
      if (const std::optional<Layout> wanted = given_.of_output(i); wanted && graph_.outputs[i] == value)
        add_reader(-1, number_of(*wanted));
    std::vector<int> members = image.readers;
    members.push_back(image.maker);
    for (int member : members) {
      if (member < 0) continue;
      Place& place = places_[static_cast<size_t>(member)];
      if (place.height == 0) {
        place.height = image.spec.shape[2];
        place.width = image.spec.shape[3];
      }
      for (int other : members)
        if (other >= 0 && other != member) place.neighbours.push_back(other);
    }
    images_.push_back(std::move(image));
  }

  double reorder(const TensorSpec& spec, int from, int to) {
    std::string key = fmt::format("{} {} {}", to_string(spec), from, to);
    auto [known, fresh] = reorders_.emplace(key, 0.0);
    if (fresh)
      known->second = reorder_nanoseconds(spec, layouts_[static_cast<size_t>(from)], layouts_[static_cast<size_t>(to)]);
    return known->second;
  }

  // Reorders of each image, looked up once: [image][from · layouts + to].
  void fill_reorder_table() {
    size_t n = layouts_.size();
    std::vector<Reorder> reorders;
    for (const Image& image : images_)
      for (const Layout& from : layouts_)
        for (const Layout& to : layouts_) reorders.push_back({image.spec, from, to});
    share_out_reorders(reorders);
    for (const Image& image : images_) {
      std::vector<double>& row = reorder_table_.emplace_back(n * n, 0.0);
      for (size_t from = 0; from < n; ++from)
        for (size_t to = 0; to < n; ++to)
          if (from != to) row[from * n + to] = reorder(image.spec, static_cast<int>(from), static_cast<int>(to));
      double dearest = *std::max_element(row.begin(), row.end());
      for (int reader : image.readers) mark_if_dear(reader, dearest);
      mark_if_dear(image.maker, dearest);
    }
  }

  void mark_if_dear(int index, double reorder) {
    if (index < 0) return;
    Place& place = places_[static_cast<size_t>(index)];
    constexpr double kTimesAReorder = 3;
    if (*std::min_element(place.times.begin(), place.times.end()) > kTimesAReorder * reorder) place.cheap = false;
  }

  double cost_of(const std::vector<int>& labels) {
    double cost = 0;
    for (size_t i = 0; i < places_.size(); ++i) cost += places_[i].times[static_cast<size_t>(labels[i])];
    size_t n = layouts_.size();
    for (size_t i = 0; i < images_.size(); ++i) {
      const Image& image = images_[i];
      auto label = [&](int place, int otherwise) {
        return static_cast<unsigned>(place < 0 ? otherwise : labels[static_cast<size_t>(place)]);
      };
      const unsigned made = label(image.maker, image.given);
      uint32_t counted = 1U << made;
      for (size_t k = 0; k < image.readers.size(); ++k) {
        const unsigned read = label(image.readers[k], image.wanted[k]);
        if ((counted >> read & 1) != 0) continue;
        counted |= 1U << read;
        cost += reorder_table_[i][made * n + read];
      }
    }
    return cost;
  }

  int nearest_label(const Place& place, int wanted) const {
    if (place.times[static_cast<size_t>(wanted)] != kNever) return wanted;
    return static_cast<int>(std::min_element(place.times.begin(), place.times.end()) - place.times.begin());
  }

  std::vector<int> best_uniform() {
    std::vector<int> best;
    for (int label = 0; label < static_cast<int>(layouts_.size()); ++label) {
      std::vector<int> labels;
      for (const Place& place : places_) labels.push_back(nearest_label(place, label));
      double cost = cost_of(labels);
      if (best.empty() || cost < best_cost_) {
        best = std::move(labels);
        best_cost_ = cost;
      }
    }
    return best;
  }

  // The place and the cheap ones that hang together with it.
  std::vector<int> with_followers(int start) const {
    std::vector<int> members{start};
    std::vector<bool> seen(places_.size(), false);
    seen[static_cast<size_t>(start)] = true;
    for (size_t next = 0; next < members.size(); ++next)
      for (int other : places_[static_cast<size_t>(members[next])].neighbours) {
        if (seen[static_cast<size_t>(other)] || !places_[static_cast<size_t>(other)].cheap) continue;
        seen[static_cast<size_t>(other)] = true;
        members.push_back(other);
      }
    return members;
  }

  std::vector<int> of_same_size(int start) const {
    const Place& like = places_[static_cast<size_t>(start)];
    std::vector<int> members;
    for (size_t i = 0; i < places_.size(); ++i)
      if (places_[i].height == like.height && places_[i].width == like.width) members.push_back(static_cast<int>(i));
    return members;
  }

  bool try_move(std::vector<int>& labels, const std::vector<int>& members, int label) {
    std::vector<int> moved = labels;
    for (int member : members)
      if (places_[static_cast<size_t>(member)].times[static_cast<size_t>(label)] != kNever)
        moved[static_cast<size_t>(member)] = label;
    if (moved == labels) return false;
    double cost = cost_of(moved);
    if (cost >= best_cost_ * (1 - 1e-6)) return false;
    labels = std::move(moved);
    best_cost_ = cost;
    return true;
  }

  bool improve(std::vector<int>& labels) {
    bool better = false;
    std::map<std::pair<int64_t, int64_t>, bool> sizes_done;
    for (int place = 0; place < static_cast<int>(places_.size()); ++place) {
      if (places_[static_cast<size_t>(place)].cheap) continue;
      bool fresh =
          sizes_done
              .emplace(std::pair(places_[static_cast<size_t>(place)].height, places_[static_cast<size_t>(place)].width),
                       true)
              .second;
      for (int label = 0; label < static_cast<int>(layouts_.size()); ++label) {
        better |= try_move(labels, {place}, label);
        better |= try_move(labels, with_followers(place), label);
        if (fresh) better |= try_move(labels, of_same_size(place), label);
      }
    }
    for (int place = 0; place < static_cast<int>(places_.size()); ++place)
      if (places_[static_cast<size_t>(place)].cheap)
        for (int label = 0; label < static_cast<int>(layouts_.size()); ++label)
          better |= try_move(labels, {place}, label);
    return better;
  }

  const Graph& graph_;
  const GivenLayouts& given_;
  const ParameterValues& parameters_;
  bool fast_math_;
  std::vector<Layout> layouts_{Layout{}, channels_last()};
  std::vector<Place> places_;
  std::unordered_map<const GraphNode*, int> place_of_;
  std::vector<Image> images_;
  std::map<std::string, double> reorders_;
  std::vector<std::vector<double>> reorder_table_;
  double best_cost_ = 0;
};

}  // namespace

// Forwards: variables, and what elementwise ops make of these alone. Backwards: what is assigned to a variable, what a
// node reads that writes a variable of that shape, and what elementwise ops turn into these.
ParameterValues::ParameterValues(const Graph& graph) {
  for (const GraphNode& node : graph.nodes()) {
    bool all = !node.is_input() && !node.inputs.empty() && node.op->has(Trait::elementwise);
    for (const GraphValue& input : node.inputs) all &= contains(input);
    if (all || node.leaf == LeafKind::variable) values_[output_of(node, 0)] = true;
  }
  std::unordered_map<const GraphNode*, std::vector<Shape>> written;
  for (const GraphAssignment& assignment : graph.assignments) {
    values_[assignment.value] = true;
    written[assignment.value.node].push_back(assignment.value.spec().shape);
  }
  for (auto node = graph.nodes().rbegin(); node != graph.nodes().rend(); ++node) {
    for (size_t i = 0; i < node->outputs.size(); ++i) {
      GraphValue value = output_of(*node, i);
      for (const GraphNode* user : graph.users(value)) {
        auto shapes = written.find(user);
        bool updates = shapes != written.end() && std::find(shapes->second.begin(), shapes->second.end(),
                                                            value.spec().shape) != shapes->second.end();
        std::optional<GraphValue> further = passed_on(*user, value);
        if (updates || (further && contains(*further))) values_[value] = true;
      }
    }
  }
}

bool ParameterValues::contains(const GraphValue& value) const { return values_.contains(value); }

std::optional<GraphValue> passed_on(const GraphNode& node, const GraphValue& input) {
  if (node.is_input()) return {};
  if (node.op->has(Trait::elementwise)) return output_of(node, 0);
  if (!node.op->has(Trait::one_by_one)) return {};
  return output_of(node,
                   static_cast<size_t>(std::find(node.inputs.begin(), node.inputs.end(), input) - node.inputs.begin()));
}

bool keeps_images_as(const ParameterValues& parameters, const GraphNode& node, const Candidate& candidate,
                     const Layout& layout) {
  for (size_t i = 0; i < node.inputs.size(); ++i)
    if (parameters.is_image(node.inputs[i]) &&
        !same_places(node.inputs[i].spec().shape, candidate.input_layouts[i], layout))
      return false;
  for (size_t i = 0; i < node.outputs.size(); ++i)
    if (parameters.is_image(output_of(node, i)) &&
        !same_places(node.outputs[i].shape, candidate.output_layouts[i], layout))
      return false;
  return true;
}

NodeLayouts choose_image_layouts(const Graph& graph, const GivenLayouts& given, const ParameterValues& parameters,
                                 bool fast_math) {
  return Search(graph, given, parameters, fast_math).run();
}

}  // namespace bonfire::runtime
