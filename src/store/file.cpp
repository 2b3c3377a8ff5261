// Opens, locks, reserves and transfers a state file. Used by Volume and its transports.
#include "store/file.hpp"

#include "base/error.hpp"
#include "base/log.hpp"
#include "base/wording.hpp"
#include "store/storage_folder.hpp"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <thread>
#include <utility>

namespace nearstep::store {

namespace {

bool is_page_multiple(std::uintptr_t value) { return value % kPageBytes == 0; }

// Drops the first `bytes` of the rest.
void skip(IoRequest& request, std::size_t bytes) {
    request.offset += static_cast<std::int64_t>(bytes);
    while (!request.is_complete() && bytes >= request.pieces[request.first].iov_len) {
        bytes -= request.pieces[request.first].iov_len;
        ++request.first;
    }
    if (bytes > 0) {
        iovec& piece = request.pieces[request.first];
        piece.iov_base = static_cast<std::byte*>(piece.iov_base) + bytes;
        piece.iov_len -= bytes;
    }
}

const char* noun(Term key) { return key == Term::log ? "log" : "state file"; }

const char* verb_of(Direction direction) {
    constexpr std::array kVerbs = {"read", "write", "flush"};
    return kVerbs.at(static_cast<std::size_t>(direction));
}

std::string advice_for(int reason, Term key) {
    if (reason == ENOSPC || reason == EDQUOT) {
        return text("free some space or raise the quota", then_start_again(), ".");
    }
    if (reason == EFBIG) {
        return text(
            "let this process write larger files, as with ulimit -f unlimited, or choose "
            "another ",
            key, then_start_again(), ".");
    }
    constexpr std::array kNotOffered = {EINVAL, ENOSYS, EOPNOTSUPP};
    if (std::ranges::find(kNotOffered, reason) != kNotOffered.end()) {
        return text("the file system does not offer this operation; choose a ", key,
                    " on another one, such as ext4 or XFS.");
    }
    return text("check the drive and its cables", then_start_again(),
                "; if it happens again, on another ", key,
                has_run() ? " from the last checkpoint." : ".");
}

}  // namespace

File::File(std::string path, Storage* storage, Term key)
    : path_(std::move(path)), storage_(storage != nullptr ? storage : &system_), key_(key) {
    PlainFile opened = open_plain(path_, O_RDWR);
    const bool is_there = opened.file || opened.code != ENOENT;
    if (!is_there || !hold(std::move(opened))) {
        // Before claim() the folder's filesystem answers for the file that will be in it.
        const std::string folder = folder_of(path_);
        lies_in_memory_ = store::lies_in_memory(folder);
        is_direct_ = examine_folder(folder).is_direct;
    }
}

void File::claim() {
    const std::string folder = folder_of(path_);
    while (!descriptor_) {
        make_writable_folder(folder, key_);
        PlainFile opened = open_plain(path_, O_RDWR | O_CREAT | O_EXCL, kStateMode);
        const bool is_new = static_cast<bool>(opened.file);
        if (opened.code == EEXIST) {  // another process was faster, and may remove it again
            opened = open_plain(path_, O_RDWR);
        }
        if (opened.file || opened.code != ENOENT) {
            is_made_ = hold(std::move(opened)) && is_new;
        }
    }
}

void File::withdraw() {
    if (is_made_) {
        ::unlink(path_.c_str());
        is_made_ = false;
    }
}

// Returns false if the file was removed before it could be locked.
bool File::hold(PlainFile opened) {
    if (!opened.file) {
        throw_path_error(text("The ", noun(key_), " \"", path_, "\" cannot be opened"), opened.code,
                         text("choose a ", key_,
                              " that you may write to and that has no other file of this name."),
                         opened.obstacle);
    }
    descriptor_ = std::move(opened.file);
    struct stat facts {};
    if (::fstat(descriptor_.get(), &facts) == 0 && facts.st_nlink > 1) {
        throw PathError(text("The ", noun(key_), " \"", path_,
                             "\" has another name too (a hard link), and "
                             "what has that name would be overwritten: replace one of them by a "
                             "copy, or choose another ",
                             key_, "."),
                        EMLINK);
    }
    lock();
    if (::fstat(descriptor_.get(), &facts) == 0 && facts.st_nlink == 0) {
        descriptor_ = Descriptor();
        return false;
    }
    lies_in_memory_ = store::lies_in_memory(descriptor_.get());
    bypass_page_cache(true);
    return true;
}

// Processes that were forked meanwhile share the lock, and hold it as long as they run.
File::~File() {
    if (descriptor_ && owner_ == ::getpid()) {
        ::flock(descriptor_.get(), LOCK_UN);
    }
}

void File::lock() {
    // A process that was killed may still be ending when its run is started again.
    constexpr std::chrono::seconds kPatience{5};
    const auto until = std::chrono::steady_clock::now() + kPatience;
    while (::flock(descriptor_.get(), LOCK_EX | LOCK_NB) != 0) {
        if (errno == EINTR) {
            continue;
        }
        if (errno == EIO || errno == ESTALE) {  // other errors tell of a file system without locks
            fail("lock", 0, errno);
        }
        if (errno != EWOULDBLOCK) {
            log_event("state_file_not_locked", {{"file", path_}, {"reason", std::strerror(errno)}});
            return;
        }
        if (std::chrono::steady_clock::now() > until) {
            throw ConfigError(text("The ", noun(key_), " \"", path_,
                                   "\" is in use by another nearstep process: end that one, or "
                                   "give each run a ",
                                   key_, " of its own."));
        }
        std::this_thread::sleep_for(std::chrono::milliseconds(20));
    }
}

void File::bypass_page_cache(bool yes) {
    const int flags = ::fcntl(descriptor_.get(), F_GETFL);
    const int wanted = yes ? (flags | O_DIRECT) : (flags & ~O_DIRECT);
    const bool is_set = ::fcntl(descriptor_.get(), F_SETFL, wanted) == 0;
    is_direct_ = yes && is_set;
    if (yes && !is_set) {
        log_event("buffered_io", {{"file", path_}, {"reason", std::strerror(errno)}});
    }
}

void File::reserve(std::size_t bytes) {
    claim();
    if (::ftruncate(descriptor_.get(), 0) != 0) {
        fail("empty", 0, errno);
    }
    const std::string folder = folder_of(path_);
    const std::size_t free_bytes = free_bytes_of(folder).value_or(bytes);
    if (bytes > free_bytes) {
        refuse_full_folder(folder, bytes, free_bytes, key_);
    }
    if (bytes > 0) {
        allocate(0, bytes, free_bytes);
    }
    sync();
    if (storage_->flush_folder(folder) != 0) {
        fail("flush the folder of", 0, errno);
    }
}

void File::allocate(std::int64_t offset, std::size_t bytes) {
    allocate(offset, bytes, free_bytes_of(folder_of(path_)).value_or(bytes));
}

// A file system that cannot give space back keeps it until the file is emptied.
void File::free(std::int64_t offset, std::size_t bytes) {
    ::fallocate(descriptor_.get(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, offset,
                static_cast<off_t>(bytes));
}

void File::allocate(std::int64_t offset, std::size_t bytes, std::size_t free_bytes) {
    // Without filesystem support the C library writes single bytes, which direct I/O refuses.
    const bool was_direct = is_direct_;
    bypass_page_cache(false);
    int reason = EINTR;
    while (reason == EINTR) {
        reason = ::posix_fallocate(descriptor_.get(), offset, static_cast<off_t>(bytes));
    }
    bypass_page_cache(was_direct);
    if (reason == ENOSPC || reason == EDQUOT) {
        refuse_full_folder(folder_of(path_), bytes, free_bytes, key_);
    }
    if (reason != 0) {
        fail("reserve space in", 0, reason);
    }
}

std::size_t File::held_bytes() const {
    struct stat facts {};
    return descriptor_ && ::fstat(descriptor_.get(), &facts) == 0
               ? static_cast<std::size_t>(facts.st_size)
               : 0;
}

void File::sync() { transfer(IoRequest::flush()); }

memory::Buffer File::map(std::size_t bytes, std::size_t more) {
    if (!descriptor_) {
        refuse_absence("map");
    }
    struct stat status {};
    if (::fstat(descriptor_.get(), &status) != 0) {
        fail("examine", 0, errno);
    }
    // A restart has read what it needs by now. The rest of the file is written before it is read,
    // as on a drive, so reserving the space is enough.
    if (static_cast<std::size_t>(status.st_size) < bytes) {
        allocate(0, bytes, 0);
    }
    if (static_cast<std::size_t>(status.st_size) < bytes + more &&
        ::ftruncate(descriptor_.get(), static_cast<off_t>(bytes + more)) != 0) {
        fail("enlarge", static_cast<std::int64_t>(bytes), errno);
    }
    return memory::Buffer::of_file(descriptor_.get(), bytes + more);
}

void File::prepare(IoRequest& request) {
    expects(request.offset >= 0 && is_page_multiple(static_cast<std::uintptr_t>(request.offset)),
            "the offset of a transfer is a multiple of 4096");
    for (const iovec& piece : request.pieces) {
        expects(is_page_multiple(reinterpret_cast<std::uintptr_t>(piece.iov_base)) &&
                    is_page_multiple(piece.iov_len),
                "memory of a transfer lies and ends on multiples of 4096");
    }
    if (request.direction != Direction::flush) {
        skip(request, 0);
    }
}

void File::transfer(IoRequest request, const ResultFilter& filter) {
    prepare(request);
    const auto call = request.direction == Direction::read ? &Storage::read : &Storage::write;
    const bool is_flush = request.direction == Direction::flush;
    while (!request.is_complete()) {
        const auto count =
            static_cast<int>(std::min(request.pieces.size() - request.first, kMostPieces));
        const bool was_direct = is_direct_;
        const ssize_t done =
            is_flush ? storage_->flush(descriptor_.get())
                     : (storage_->*call)(descriptor_.get(), &request.pieces[request.first], count,
                                         request.offset);
        const std::int64_t result = done < 0 ? -errno : done;
        complete(request, was_direct, filter && !is_flush ? filter(request, result) : result);
    }
}

void File::complete(IoRequest& request, bool was_direct, std::int64_t result) {
    const char* verb = verb_of(request.direction);
    const bool is_flush = request.direction == Direction::flush;
    if (!descriptor_ && !is_flush) {
        refuse_absence(verb);
    }
    if (is_flush && (result == 0 || !descriptor_)) {
        request.first = request.pieces.size();
    } else if (result > 0) {
        skip(request, static_cast<std::size_t>(result));
    } else if (result == 0) {
        throw DamageError(
            text("Cannot ", verb, " ", noun(key_), " \"", path_, "\" at offset ", request.offset,
                 " (the file ends there): it was cut short by something else; resume from the last "
                 "checkpoint."));
    } else if (result == -EAGAIN) {
        std::this_thread::yield();
    } else if (result == -EINVAL && was_direct) {
        // Some filesystems accept O_DIRECT and refuse the transfer, or the rest of a short one.
        if (is_direct_) {
            log_event("buffered_io", {{"file", path_}, {"reason", std::strerror(EINVAL)}});
            bypass_page_cache(false);
        }
    } else if (result != -EINTR) {
        fail(verb, request.offset, static_cast<int>(-result));
    }
}

void File::refuse_absence(const char* verb) const {
    throw DamageError(text("Cannot ", verb, " ", noun(key_), " \"", path_,
                           "\" (it is not there): it was removed by something else; resume from "
                           "the last checkpoint."));
}

void File::fail(const char* verb, std::int64_t offset, int reason) const {
    throw IoError(text("Cannot ", verb, " ", noun(key_), " \"", path_, "\" at offset ", offset,
                       " (", std::strerror(reason), "): ", advice_for(reason, key_)));
}

}  // namespace nearstep::store
