import type { GuestMemory } from '#shared/sandbox/wasm/inside/guest/memory.ts'
import { WasiError } from './abi.ts'
import type { Descriptors } from './descriptors.ts'
import { fileCalls } from './files.ts'
import { pathCalls } from './paths.ts'
import { systemCalls } from './system.ts'

type Call = (...args: never[]) => unknown

/**
 * WASI preview 1 for one guest, implemented on JavaScript memory: the calls by name, each returning an errno.
 *
 * `node:wasi` is not used, since its documentation rules out untrusted code. No call here opens a file, a socket or a process of the host,
 * so no argument of the guest can name one.
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

/** Other errors are rethrown: the guest's exit, a stack overflow, a defect of ours. */
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
