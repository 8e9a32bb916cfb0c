#include "train/signals.h"

#include <csignal>
#include <initializer_list>

namespace hyscale {
namespace {

volatile std::sig_atomic_t received = 0;

extern "C" void note_signal(int signal) {
  received = signal;
  if (signal == SIGINT) std::signal(SIGINT, SIG_DFL);
}

}  // namespace

void install_stop_signals() {
  for (int signal : {SIGINT, SIGTERM, SIGUSR1}) std::signal(signal, note_signal);
}

int stop_signal() { return received; }

const char* signal_name(int signal) {
  switch (signal) {
    case SIGINT: return "SIGINT";
    case SIGTERM: return "SIGTERM";
    case SIGUSR1: return "SIGUSR1";
    default: return "signal";
  }
}

}  // namespace hyscale
