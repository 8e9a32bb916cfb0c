// SIGINT, SIGTERM, SIGUSR1 and SIGHUP ask the run to stop after the step in progress; a second SIGINT ends the process at once.
// A SIGHUP that is ignored, as under nohup, stays so. A log that nobody reads any more (SIGPIPE) ends nothing.
#pragma once

namespace hyscale {

// `speaks`: the first SIGINT is answered on stderr, since the step in progress may last.
void install_stop_signals(bool speaks);
// The signal that came, or 0.
int stop_signal();
const char* signal_name(int signal);

}  // namespace hyscale
