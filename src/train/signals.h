// SIGINT, SIGTERM and SIGUSR1 ask the run to stop after the step in progress; a second SIGINT ends the process at once.
#pragma once

namespace hyscale {

void install_stop_signals();
// The signal that came, or 0.
int stop_signal();
const char* signal_name(int signal);

}  // namespace hyscale
