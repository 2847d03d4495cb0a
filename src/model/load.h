// ModelConfig and a source of tensors -> a Decoder on a backend.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "backend/backend.h"
#include "format/config.h"
#include "model/decoder.h"
#include "model/tensor_source.h"
#include "state/state_pool.h"

namespace tandem {

// Called while loading, with what is being packed; bytes count weights as the source holds them.
using LoadProgress = std::function<void(uint64_t done_bytes, uint64_t total_bytes, const std::string& what)>;

// Embedding and head that a drafter uses of its target. Both null: the source's own.
struct SharedWeights {
  std::shared_ptr<const Weight> embedding, head;
};

// Builds the network a configuration describes. Merges projections that read the same input, brings every
// family's rows into one order, cuts k-slices. Errors: what the source says; not enough memory (with the
// bytes needed).
Result<std::unique_ptr<Decoder>> load_decoder(TensorSource& source, const ModelConfig& config,
                                              Backend& backend, const DecoderLimits& limits,
                                              const LoadProgress& progress, const SharedWeights& shared = {});

// Looks for every tensor that load_decoder would take, with its shape and dtype, and keeps nothing: what it
// accepts, load_decoder accepts where memory suffices. Errors: as load_decoder.
enum class TensorParts { all, without_embedding_and_head };
Status check_tensors(TensorSource& source, const ModelConfig& config, TensorParts parts = TensorParts::all);

// What a sequence of this model carries.
StateShape state_shape_of(const ModelConfig& config);

// Bytes of weights of a configuration, as packed (estimated from shapes and the quantisation block).
uint64_t weight_bytes_of(const ModelConfig& config);

}  // namespace tandem
