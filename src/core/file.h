// Files whose errors name the path. All functions throw UserError with the system's reason.
#pragma once
#include <cstdint>
#include <string>

namespace hyscale {

class File {
 public:
  static File open_to_read(const std::string& path);
  static File create(const std::string& path);           // truncates
  static File open_to_append(const std::string& path);   // creates when missing
  File(File&&) noexcept;
  File& operator=(File&&) noexcept;
  ~File();

  int64_t size() const;
  // Exactly `bytes` bytes at `offset`; fewer in the file is an error that names both sizes.
  void read_at(int64_t offset, void* to, size_t bytes) const;
  void write(const void* from, size_t bytes);  // at the current end of what was written
  void truncate(int64_t bytes);
  void sync();   // to the disk
  void close();  // throws where the destructor could not
  const std::string& path() const { return path_; }

 private:
  friend class MappedFile;
  File(std::string path, int descriptor) : path_(std::move(path)), descriptor_(descriptor) {}
  std::string path_;
  int descriptor_ = -1;
};

// All bytes of a file without a copy: the system reads pages as they are used, may drop them again, and shares them among the
// processes of a host. Files that are replaced by renaming stay as they were mapped; where a file is shortened or its disk
// fails, reading ends the process with code 2 and the file's name (SIGBUS).
class MappedFile {
 public:
  explicit MappedFile(const std::string& path);
  ~MappedFile();
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  const char* data() const { return data_; }
  int64_t size() const { return size_; }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
  int64_t size_ = 0;
  const char* data_ = nullptr;
};

std::string read_text_file(const std::string& path);
// Writes, syncs, and renames into place: a reader sees the old text or the new one.
void write_text_file(const std::string& path, const std::string& text);
void make_folder(const std::string& path);  // and those that it lies in, where they are missing
void rename_file(const std::string& from, const std::string& to);  // replaces `to`
void sync_directory(const std::string& path);

}  // namespace hyscale
