import { randomFillSync } from 'node:crypto'
import { GuestExit, WasiError } from './abi.ts'
import type { GuestMemory } from './memory.ts'

const SUBSCRIPTIONS_MAX = 1_024
const RANDOM_BYTES_MAX = 1 << 26
/** Resolution of the clocks in nanoseconds, as `time.get_clock_info` reports it in the guest. */
const RESOLUTION_NS = 1_000n
const REALTIME = 0
const ABSOLUTE = 1

interface Subscription {
  readonly userdata: bigint
  readonly type: number
  /** Time in ms until the event for which the guest waits. 0 for a read or write, because no data arrives later. */
  readonly waitMs: number
}

/**
 * The calls of WASI preview 1 that do not concern files: arguments, variables, clocks, random numbers, waiting, exit.
 *
 * Waiting blocks the thread, so only terminating the thread interrupts it.
 */
export function systemCalls(memory: GuestMemory, variables: Readonly<Record<string, string>>) {
  const environment = Object.entries(variables).map(([name, value]) => `${name}=${value}`)
  const texts = (list: readonly string[]) => list.map((text) => Buffer.from(`${text}\0`))
  const sizes = (list: readonly string[], countOut: number, bytesOut: number) => {
    memory.setU32(countOut, list.length)
    memory.setU32(
      bytesOut,
      texts(list).reduce((sum, text) => sum + text.length, 0),
    )
  }
  const write = (list: readonly string[], pointers: number, bytes: number) => {
    let at = bytes >>> 0
    for (const [i, text] of texts(list).entries()) {
      memory.setU32((pointers >>> 0) + 4 * i, at)
      memory.bytes(at, text.length).set(text)
      at += text.length
    }
  }
  const argv = ['python']
  return {
    args_sizes_get: (countOut: number, bytesOut: number) => sizes(argv, countOut, bytesOut),
    args_get: (pointers: number, bytes: number) => write(argv, pointers, bytes),
    environ_sizes_get: (countOut: number, bytesOut: number) => sizes(environment, countOut, bytesOut),
    environ_get: (pointers: number, bytes: number) => write(environment, pointers, bytes),
    clock_res_get: (_clock: number, out: number) => memory.setU64(out, RESOLUTION_NS),
    clock_time_get: (clock: number, _precision: bigint, out: number) => memory.setU64(out, nanoseconds(clock)),

    random_get(address: number, length: number) {
      if (length >>> 0 > RANDOM_BYTES_MAX) throw new WasiError('inval')
      randomFillSync(memory.bytes(address, length))
    },

    poll_oneoff(subscriptions: number, events: number, count: number, out: number) {
      if (count < 1 || count > SUBSCRIPTIONS_MAX) throw new WasiError('inval')
      const all = Array.from({ length: count }, (_, i) => readSubscription(memory, (subscriptions >>> 0) + 48 * i))
      const shortestMs = Math.min(...all.map(({ waitMs }) => waitMs))
      block(shortestMs)
      const ready = all.filter(({ waitMs }) => waitMs <= shortestMs)
      for (const [i, event] of ready.entries()) writeEvent(memory, (events >>> 0) + 32 * i, event)
      memory.setU32(out, ready.length)
    },

    proc_exit(status: number): never {
      throw new GuestExit(status & 0xff)
    },

    sched_yield: () => {},
    sock_accept: noSocket,
    sock_recv: noSocket,
    sock_send: noSocket,
    sock_shutdown: noSocket,
  }
}

function nanoseconds(clock: number): bigint {
  // All clocks except the real-time clock return monotonic time. The clocks of CPU time are among them, because a run has a thread of its own.
  const ms = clock === REALTIME ? performance.timeOrigin + performance.now() : performance.now()
  return BigInt(Math.floor(ms * 1_000)) * 1_000n
}

function readSubscription(memory: GuestMemory, address: number): Subscription {
  const userdata = memory.getU64(address)
  const type = memory.getU8(address + 8)
  if (type !== 0) return { userdata, type, waitMs: 0 }
  const clock = memory.getU32(address + 16)
  const timeout = memory.getU64(address + 24)
  const isAbsolute = (memory.getU16(address + 40) & ABSOLUTE) !== 0
  const left = isAbsolute ? timeout - nanoseconds(clock) : timeout
  return { userdata, type, waitMs: left > 0n ? Number(left) / 1e6 : 0 }
}

function writeEvent(memory: GuestMemory, address: number, { userdata, type }: Subscription): void {
  memory.bytes(address, 32).fill(0)
  memory.setU64(address, userdata)
  memory.setU8(address + 10, type)
  if (type !== 0) memory.setU64(address + 16, 1n)
}

function block(ms: number): void {
  if (ms > 0) Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, ms)
}

function noSocket(): never {
  throw new WasiError('notsock')
}
