#include "bonfire/optim/optimizers.h"

namespace bonfire::optim {

namespace {
using Rule = OptimizerRule;
const std::vector<std::string> kMomentumState = {"momentum_buffer"};
const std::vector<std::string> kMoments = {"exp_avg", "exp_avg_sq"};
}  // namespace

SGD::SGD(const ParameterGroups& parameters, const SGDOptions& options)
    : Optimizer(parameters,
                {.name = "sgd", .rule = Rule::sgd, .lr = options.lr, .weight_decay = options.weight_decay}) {}

Momentum::Momentum(const ParameterGroups& parameters, const MomentumOptions& options)
    : Optimizer(parameters, {.name = "momentum",
                             .rule = Rule::momentum,
                             .lr = options.lr,
                             .weight_decay = options.weight_decay,
                             .first = options.momentum,
                             .nesterov = options.nesterov,
                             .state_names = kMomentumState}) {}

Adagrad::Adagrad(const ParameterGroups& parameters, const AdagradOptions& options)
    : Optimizer(parameters, {.name = "adagrad",
                             .rule = Rule::adagrad,
                             .lr = options.lr,
                             .weight_decay = options.weight_decay,
                             .eps = options.eps,
                             .initial_state = options.initial_accumulator_value,
                             .state_names = {"sum"}}) {}

Adam::Adam(const ParameterGroups& parameters, const AdamOptions& options)
    : Optimizer(parameters, {.name = "adam",
                             .rule = Rule::adam,
                             .lr = options.lr,
                             .weight_decay = options.weight_decay,
                             .first = options.betas[0],
                             .second = options.betas[1],
                             .eps = options.eps,
                             .state_names = kMoments}) {}

AdamW::AdamW(const ParameterGroups& parameters, const AdamWOptions& options)
    : Optimizer(parameters, {.name = "adamw",
                             .rule = Rule::adamw,
                             .lr = options.lr,
                             .weight_decay = options.weight_decay,
                             .first = options.betas[0],
                             .second = options.betas[1],
                             .eps = options.eps,
                             .state_names = kMoments}) {}

LARS::LARS(const ParameterGroups& parameters, const LARSOptions& options)
    : Optimizer(parameters, {.name = "lars",
                             .rule = Rule::lars,
                             .lr = options.lr,
                             .weight_decay = options.weight_decay,
                             .first = options.momentum,
                             .second = options.trust_coefficient,
                             .eps = options.eps,
                             .state_names = kMomentumState}) {}

LAMB::LAMB(const ParameterGroups& parameters, const LAMBOptions& options)
    : Optimizer(parameters, {.name = "lamb",
                             .rule = Rule::lamb,
                             .lr = options.lr,
                             .weight_decay = options.weight_decay,
                             .first = options.betas[0],
                             .second = options.betas[1],
                             .eps = options.eps,
                             .state_names = kMoments}) {}

}  // namespace bonfire::optim
