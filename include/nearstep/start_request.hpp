// The user's request for what a run begins with.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

namespace nearstep::engine {

struct StartRequest {
    enum class Kind {
        none,           // start anew, but not where a run is unfinished
        resume,         // from the state files or the folder's newest checkpoint
        resume_if_any,  // the same; if nothing can be resumed, start anew
        from,           // from the checkpoint `path`
        fresh           // start anew despite an unfinished run
    };

    Kind kind = Kind::none;
    // Index of a checkpoint to begin from in place of start values. With resume_if_any: unless the
    // run has gone on from it already.
    std::string path = {};
    // With resume_if_any: a job that Slurm starts again was submitted to start anew. It does so
    // unless it has begun, and gives up what other runs left.
    bool is_fresh_job = false;

    // The request as messages name it, behind "what to begin with is".
    std::string in_words() const {
        switch (kind) {
            case Kind::none:
                return "a new run";
            case Kind::resume:
                return "the run that is there";
            case Kind::resume_if_any:
                return "the run that is there" + (path.empty() ? "" : ", or " + path);
            case Kind::from:
                return path;
            case Kind::fresh:
                return "a new run in place of the one that is there";
        }
        return "";
    }
    // Whether the run resumes from what is there.
    bool resumes() const { return kind == Kind::resume || kind == Kind::resume_if_any; }
    bool may_start_anew() const { return kind == Kind::resume_if_any; }
    bool is_fresh() const { return kind == Kind::fresh; }
};

// Number of steps in the whole run that wrote the checkpoint at `path`. `config` is the text that
// the checkpoint keeps (Identity::config).
using StepsOf = std::function<std::int64_t(const std::string& path, const std::string& config)>;

}  // namespace nearstep::engine
