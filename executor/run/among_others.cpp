#include "executor/run/among_others.h"

#include <new>
#include <string>

#include "base/error.h"
#include "base/files/result_file.h"
#include "executor/meter/meter.h"
#include "executor/place/first_line.h"

namespace vramfit {

void run_among_others(FailureWatch& watch, const std::function<void()>& run) {
  try {
    run();
    watch.done();
  } catch (const PeerLost& error) {
    throw FaultError(watch.lost_peer(error.what()));
  } catch (const ReaderGone& error) {
    watch.failed(error.what());
    throw;
  } catch (const Error& error) {
    throw Error(error.code, watch.failed(error.what()));
  } catch (const std::bad_alloc&) {
    throw OutOfMemory(watch.failed("out of host memory"));
  } catch (const std::exception& error) {
    throw FaultError(watch.failed(first_line(error)));
  }
}

}  // namespace vramfit
