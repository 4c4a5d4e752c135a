#pragma once
// Texts into classes: embedding, LSTM, and a linear layer on the last state.

#include "bonfire/nn/embedding.h"
#include "bonfire/nn/linear.h"
#include "bonfire/nn/lstm.h"

namespace bonfire::models {

struct LstmClassifierOptions {
  int64_t vocabulary = 1000;
  int64_t embedding = 64, hidden = 64;  // elements of a token and of a state
  int64_t layers = 2;
  int64_t classes = 5;
  double dropout = 0;  // between layers of the LSTM
};

class LstmClassifier : public nn::Callable<LstmClassifier> {
 public:
  explicit LstmClassifier(const LstmClassifierOptions& options);
  Tensor forward(const Tensor& tokens) const;  // i64 [N, T] → [N, classes]

 private:
  nn::Embedding embedding_;
  nn::LSTM lstm_;
  nn::Linear fc_;
};

inline LstmClassifier lstm_classifier(const LstmClassifierOptions& options = {}) { return LstmClassifier(options); }

}  // namespace bonfire::models
