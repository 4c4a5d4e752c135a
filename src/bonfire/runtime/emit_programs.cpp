#include "bonfire/runtime/emit_programs.h"

#include <algorithm>
#include <map>
#include <tuple>

#include "bonfire/base/error.h"
#include "bonfire/comm/agreement.h"
#include "bonfire/runtime/profile.h"

namespace bonfire::runtime {

namespace {

class Emitter {
 public:
  Emitter(const NodeOrder& order, const ValuePlaces& places, Choices& choices, Plan& plan)
      : order_(order), places_(places), choices_(choices), plan_(plan) {}

  void run() {
    for (Device device : order_.program_devices) {
      PlanProgram program;
      program.program = std::make_shared<Program>();
      program.program->device = device;
      program.scalars = places_.scalars_of(device);
      program.scalar_bytes = places_.scalar_bytes(device);
      program.arena_bytes = places_.arena_bytes(device);
      plan_.programs.push_back(std::move(program));
    }
    for (size_t i = 0; i < plan_.programs.size(); ++i) add_agreements(static_cast<int>(i));
    std::map<int, int> written_by;  // cell → program
    for (size_t i = 0; i < order_.nodes.size(); ++i) {
      GraphNode& node = *order_.nodes[i];
      PlanProgram& program = plan_.programs[order_.program_of[i]];
      for (const GraphValue& input : node.inputs)
        if (auto writer = written_by.find(places_.cell_of(input));
            writer != written_by.end() && writer->second != order_.program_of[i])
          note_dependency(program, writer->second);
      for (int output = 0; output < static_cast<int>(node.outputs.size()); ++output)
        written_by[places_.cell_of({&node, output})] = order_.program_of[i];
      add_step(program, node);
    }
  }

 private:
  // A program with collectives begins with its ranks' agreement on them, one for each axis.
  void add_agreements(int program) {
    std::vector<comm::PlannedCollective> collectives;
    for (size_t i = 0; i < order_.nodes.size(); ++i)
      if (order_.program_of[i] == program && order_.nodes[i]->op->has(Trait::collective))
        collectives.push_back({order_.nodes[i], choices_.of_node.at(order_.nodes[i]).candidate.input_layouts});
    std::vector<ProgramStep>& steps = plan_.programs[static_cast<size_t>(program)].program->steps;
    for (comm::Agreement& agreement : comm::agreements(collectives, !counted_)) {
      counted_ = true;
      PlanNote note{.node = "agree", .path = "", .candidate = to_string(agreement.line), .output_layouts = {}};
      note.program = program;
      note.step = static_cast<int>(steps.size());
      plan_.notes.push_back(std::move(note));
      steps.push_back({.kernel = std::move(agreement.kernel),
                       .inputs = {},
                       .outputs = {},
                       .line = agreement.line,
                       .agrees = true,
                       .label = "[agree]"});
    }
  }

  void note_dependency(PlanProgram& program, int earlier) {
    bool same_queue = plan_.programs[earlier].program->device == program.program->device;
    bool known = std::find(program.after.begin(), program.after.end(), earlier) != program.after.end();
    BONFIRE_CHECK(earlier < static_cast<int>(&program - plan_.programs.data()), "a program waits for a later one");
    if (!same_queue && !known) program.after.push_back(earlier);
  }

  int address(PlanProgram& program, const Location& location, size_t bytes) {
    auto key = std::tuple(program.program.get(), location.source, location.index, location.offset, bytes);
    auto [slot, fresh] = addresses_.emplace(key, static_cast<int>(program.locations.size()));
    if (!fresh) return slot->second;
    Address address{AddressKind::fixed, bytes, 0};
    if (location.source == Source::feed) address.kind = AddressKind::feed;
    if (location.source == Source::output || location.source == Source::crossing) address.kind = AddressKind::output;
    if (location.source == Source::scalar) address = {AddressKind::scalars, bytes, location.offset};
    program.locations.push_back(location);
    program.program->addresses.push_back(address);
    return slot->second;
  }

  void add_step(PlanProgram& program, GraphNode& node) {
    Choice& choice = choices_.of_node.at(&node);
    plan_.notes.push_back(note_of(node, choice.candidate));
    if (choice.alias) return;
    plan_.notes.back().program = static_cast<int>(&program - plan_.programs.data());
    plan_.notes.back().step = static_cast<int>(program.program->steps.size());
    ProgramStep step;
    step.kernel = choice.candidate.build();
    step.line = choice.candidate.line;
    if (step.line) step.in_place = choice.candidate.in_place;
    plan_.waits_for_ranks |= node.op->has(Trait::collective);
    step.label = "[" + std::string(node.name()) + "]" + (node.path.empty() ? "" : " in module " + node.path);
    for (const GraphValue& input : node.inputs) {
      const Location location = places_.location_of(input);
      const int read = address(program, location, places_.bytes_of(input));
      // What another device wrote is only read here, from a place of its own on each submission.
      if (location.source == Source::crossing && input.spec().device != node.device())
        program.program->addresses[static_cast<size_t>(read)].kind = AddressKind::feed;
      step.inputs.push_back(read);
    }
    for (int i = 0; i < static_cast<int>(node.outputs.size()); ++i) {
      const GraphValue written{&node, i};
      step.outputs.push_back(address(program, places_.location_of(written), places_.bytes_of(written)));
    }
    if (const Location* workspace = places_.workspace_of(node))
      step.workspace = address(program, *workspace, choice.candidate.workspace_bytes);
    program.program->steps.push_back(std::move(step));
  }

  const NodeOrder& order_;
  const ValuePlaces& places_;
  Choices& choices_;
  Plan& plan_;
  std::map<std::tuple<const Program*, Source, int, size_t, size_t>, int> addresses_;
  bool counted_ = false;  // by a program's agreement
};

}  // namespace

void emit_programs(const NodeOrder& order, const ValuePlaces& places, Choices& choices, Plan& plan) {
  Emitter(order, places, choices, plan).run();
}

}  // namespace bonfire::runtime
