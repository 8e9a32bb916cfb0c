#include "train/signals.h"

#include <unistd.h>

#include <csignal>
#include <initializer_list>

namespace hyscale {
namespace {

volatile std::sig_atomic_t received = 0;

bool answers = false;

extern "C" void note_signal(int signal) {
  received = signal;
  if (signal != SIGINT) return;
  std::signal(SIGINT, SIG_DFL);
  constexpr char kAnswer[] = "\nSIGINT: the run saves and stops after this step; a second one ends it at once, without saving\n";
  if (answers) [[maybe_unused]] const ssize_t ignored = ::write(STDERR_FILENO, kAnswer, sizeof kAnswer - 1);
}

}  // namespace

void install_stop_signals(bool speaks) {
  answers = speaks;
  for (int signal : {SIGINT, SIGTERM, SIGUSR1}) std::signal(signal, note_signal);
  if (std::signal(SIGHUP, note_signal) == SIG_IGN) std::signal(SIGHUP, SIG_IGN);
  std::signal(SIGPIPE, SIG_IGN);
}

int stop_signal() { return received; }

const char* signal_name(int signal) {
  switch (signal) {
    case SIGINT: return "SIGINT";
    case SIGTERM: return "SIGTERM";
    case SIGUSR1: return "SIGUSR1";
    case SIGHUP: return "SIGHUP";
    default: return "signal";
  }
}

}  // namespace hyscale
