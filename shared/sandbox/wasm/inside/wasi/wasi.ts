import type { GuestMemory } from '#shared/sandbox/wasm/inside/guest/memory.ts'
import { WasiError } from './abi.ts'
import type { Descriptors } from './descriptors.ts'
import { fileCalls } from './files.ts'
import { pathCalls } from './paths.ts'
import { systemCalls } from './system.ts'

type Call = (...args: never[]) => unknown

/**
 * WASI preview 1 for one guest, answered from JavaScript memory: the calls by name, each of which gives an errno.
 *
 * Not `node:wasi`: its documentation says that it is not for untrusted code. No call in here opens a file, a socket or
 * a process of the host, so nothing that the guest passes can name one.
 */
export function wasiCalls(
  memory: GuestMemory,
  descriptors: Descriptors,
  variables: Readonly<Record<string, string>>,
): Record<string, Call> {
  const calls: Record<string, Call> = {
    ...fileCalls(memory, descriptors),
    ...pathCalls(memory, descriptors),
    ...systemCalls(memory, variables),
  }
  return Object.fromEntries(Object.entries(calls).map(([name, call]) => [name, withErrno(call)]))
}

/** What is no failure of the call goes up: the guest's end, a stack that is full, a defect of ours. */
function withErrno(call: Call): Call {
  return (...args) => {
    try {
      call(...args)
      return 0
    } catch (error) {
      if (error instanceof WasiError) return error.errno
      throw error
    }
  }
}
