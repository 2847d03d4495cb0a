// The same load on an engine itself: no HTTP, no JSON, no text.
#pragma once

#include "cli/bench/load.h"
#include "engine/engine.h"

namespace tandem::bench {

// Every prompt must have ids. Answers that the engine refuses are errors.
LoadResult run_on_engine(Engine& engine, const Load& load);

}  // namespace tandem::bench
