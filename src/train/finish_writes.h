// The end of a save, for which training waits. Writing may take longer than run.hang_seconds, on ranks that others wait for: what
// tells a hang from a long save is whether any rank gets on.
#pragma once
#include "checkpoint/write_queue.h"
#include "comm/communicator.h"

namespace hyscale {

// Collective. Returns when the queues of all ranks are done. Throws the first error of this rank's queue. The watchdog is kept quiet
// while pieces of work are finished, and left to itself when none has been on any rank for hang_seconds (0: never).
void finish_writes(WriteQueue&, Communicator& hosts, double hang_seconds);

}  // namespace hyscale
