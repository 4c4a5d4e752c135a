#include "bonfire/models/lstm_classifier.h"

#include "bonfire/ops/shape_ops.h"

namespace bonfire::models {

LstmClassifier::LstmClassifier(const LstmClassifierOptions& options)
    : Callable("LstmClassifier"),
      embedding_(register_module("embedding", nn::Embedding({.rows = options.vocabulary, .size = options.embedding}))),
      lstm_(register_module("lstm", nn::LSTM({.input = options.embedding,
                                              .hidden = options.hidden,
                                              .layers = options.layers,
                                              .batch_first = true,
                                              .dropout = options.dropout}))),
      fc_(register_module("fc", nn::Linear({.in = options.hidden, .out = options.classes}))) {}

Tensor LstmClassifier::forward(const Tensor& tokens) const {
  Tensor states = lstm_(embedding_(tokens)).output;  // [N, T, hidden]
  return fc_(squeeze(slice(states, 1, -1), 1));
}

}  // namespace bonfire::models
