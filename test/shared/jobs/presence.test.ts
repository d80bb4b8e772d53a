import { pino } from 'pino'
import { afterEach, beforeEach, describe, expect, it, vi } from 'vitest'
import type { ControlRecord } from '#schemas/event.ts'
import type { Broker } from '#shared/broker/broker.ts'
import type { Peer } from '#shared/jobs/peers.ts'
import { Presence, type PresenceListener, type Self } from '#shared/jobs/presence.ts'
import { CONTROL } from '#shared/jobs/records.ts'
import type { Log } from '#shared/log/log.ts'
import { openBroker, silentLog } from '../../support/jobs/jobs.ts'

const SILENT_MS = 2_000
const LOST_MS = 5_000

let broker: Broker
beforeEach(async () => {
  vi.useFakeTimers()
  broker = await openBroker()
})
afterEach(async () => {
  vi.useRealTimers()
  await broker.close()
})

async function join(
  boot: string,
  more: {
    listener?: PresenceListener
    broker?: Broker
    running?: () => number
    log?: Log
    capacity?: Self['capacity']
  } = {},
) {
  const silent: string[] = []
  const lost: string[] = []
  const presence = await Presence.open({
    broker: more.broker ?? broker,
    log: more.log ?? silentLog,
    suspectedMs: SILENT_MS,
    lostMs: LOST_MS,
    self: {
      boot,
      role: boot.startsWith('ing') ? 'ingress' : 'inference',
      version: 'test',
      slots: () => 8,
      running: more.running ?? (() => 3),
      isDraining: () => false,
      ...(more.capacity && { capacity: more.capacity }),
    },
    listener: more.listener ?? {
      onSuspected: (peer: Peer) => silent.push(peer.boot),
      onLost: (peer: Peer) => lost.push(peer.boot),
    },
  })
  return { presence, silent, lost }
}

function say(record: ControlRecord | string): Promise<void> {
  return broker.send(CONTROL, 0, '', Buffer.from(typeof record === 'string' ? record : JSON.stringify(record)))
}

function beatOf(boot: string): ControlRecord {
  return { type: 'heartbeat', boot, role: 'inference', slots: 1, running: 0, draining: false, version: 'test' }
}

/** Wraps the broker, so that sending fails while `isDown` is true. The wrapper has no `deliverLocal`, so that records pass through the channel. */
function fragile(): { broker: Broker; isDown: boolean } {
  const state = { broker, isDown: false }
  state.broker = new Proxy(broker, {
    get: (target, name) => {
      if (name === 'deliverLocal') return undefined
      if (name === 'send' && state.isDown) return () => Promise.reject(new Error('the channel is down'))
      const value = Reflect.get(target, name) as unknown
      return typeof value === 'function' ? value.bind(target) : value
    },
  })
  return state
}

/** Simulates a large fleet: 101 processes, each of which sends a heartbeat every second. */
function largeFleet(send: (record: ControlRecord) => Promise<void> = say) {
  const living = new Set(Array.from({ length: 101 }, (_, index) => `wrk_${index}`))
  const beats = new Map<string, number>()
  void broker.receive(CONTROL, [0], ({ value }) => {
    const { type, boot } = JSON.parse(value.toString())
    if (type === 'heartbeat') beats.set(boot, (beats.get(boot) ?? 0) + 1)
  })
  const sayAll = () => {
    for (const boot of living) {
      send(beatOf(boot)).catch(() => undefined)
      send({ type: 'heartbeat_interval', boot, interval_ms: 1_000 }).catch(() => undefined)
    }
  }
  sayAll()
  const timer = setInterval(sayAll, 1_000)
  return {
    beatsOf: (boot: string) => beats.get(boot) ?? 0,
    stop: (boot: string) => living.delete(boot),
    close: () => clearInterval(timer),
  }
}

describe('the failure detector', () => {
  it('of a new ingress has the capacity of each worker within 100 ms', async () => {
    const bounds = [{ kind: 'say', model: 'slow', capacity: 2 }]
    const worker = await join('wrk_1', {
      capacity: () => ({ models: ['slow'], concurrency_limits: bounds, backlog: [] }),
    })
    await vi.advanceTimersByTimeAsync(600)
    const ingress = await join('ing_1')
    await vi.advanceTimersByTimeAsync(100)
    expect(ingress.presence.capacityOf('inference', { kind: 'say', model: 'slow' })).toBe(2)
    await ingress.presence.close()
    await worker.presence.close()
  })

  it('logs a silent control channel and its recovery once per process, not per role', async () => {
    const told: string[] = []
    const log = pino({}, { write: (line) => void told.push(JSON.parse(line).msg) })
    const channel = fragile()
    for (const boot of ['ing_1', 'wrk_1', 'wrk_2']) await join(boot, { broker: channel.broker, log })
    channel.isDown = true
    await vi.advanceTimersByTimeAsync(10_000)
    channel.isDown = false
    await vi.advanceTimersByTimeAsync(2_000)
    expect(
      told.filter((msg) => msg !== 'control message could not be sent; a timeout will have the same effect later'),
    ).toEqual([
      'no records received on the control channel; dead processes are not detected',
      'control channel recovered',
    ])
  })

  it('does not log a silent control channel after the process itself was suspended', async () => {
    const told: string[] = []
    await join('ing_1', { log: pino({}, { write: (line) => void told.push(JSON.parse(line).msg) }) })
    await vi.advanceTimersByTimeAsync(1_000)
    vi.setSystemTime(Date.now() + 6_000)
    await vi.advanceTimersByTimeAsync(2_000)
    expect(told).toEqual([])
  })

  it('lists each process of a pool with its reported slots and running jobs', async () => {
    const { presence } = await join('ing_1')
    await join('wrk_1', { running: () => 5 })
    await join('wrk_2')
    await vi.advanceTimersByTimeAsync(1_000)
    expect(presence.workers('inference').map((peer) => [peer.boot, peer.slots, peer.running])).toEqual([
      ['wrk_1', 8, 5],
      ['wrk_2', 8, 3],
    ])
    expect(presence.peers.get('ing_1')?.role).toBe('ingress')
  })

  it('reports a worker as lost once, after the time limit without heartbeats', async () => {
    const { presence, lost } = await join('ing_1')
    await say(beatOf('wrk_1'))
    await vi.advanceTimersByTimeAsync(LOST_MS - 100)
    expect(lost).toEqual([])
    await vi.advanceTimersByTimeAsync(300)
    expect(lost).toEqual(['wrk_1'])
    expect(presence.workers('inference')).toEqual([])
    await vi.advanceTimersByTimeAsync(60_000)
    expect(lost).toEqual(['wrk_1'])
  })

  it('suspects a worker once per silence, before the worker counts as lost', async () => {
    const { silent, lost } = await join('ing_1')
    await say(beatOf('wrk_1'))
    await vi.advanceTimersByTimeAsync(SILENT_MS - 100)
    expect(silent).toEqual([])
    await vi.advanceTimersByTimeAsync(1_500)
    expect([silent, lost]).toEqual([['wrk_1'], []])
    await say(beatOf('wrk_1'))
    await vi.advanceTimersByTimeAsync(SILENT_MS - 100)
    expect(silent).toEqual(['wrk_1'])
    await vi.advanceTimersByTimeAsync(300)
    expect([silent, lost]).toEqual([['wrk_1', 'wrk_1'], []])
  })

  it('suspects neither its own process nor a worker that sends heartbeats', async () => {
    const { silent, lost } = await join('ing_1')
    await join('wrk_1')
    await vi.advanceTimersByTimeAsync(120_000)
    expect([silent, lost]).toEqual([[], []])
  })

  it('lists a lost worker again after a heartbeat', async () => {
    const { presence, lost } = await join('ing_1')
    await say(beatOf('wrk_1'))
    await vi.advanceTimersByTimeAsync(LOST_MS + 1_000)
    await say(beatOf('wrk_1'))
    expect(presence.workers('inference')).toHaveLength(1)
    await vi.advanceTimersByTimeAsync(LOST_MS + 1_000)
    expect(lost).toEqual(['wrk_1', 'wrk_1'])
  })

  it('reports a deregistered worker as lost only when the lease of the worker has ended', async () => {
    const { lost } = await join('ing_1')
    const worker = await join('wrk_1')
    await worker.presence.close()
    await vi.advanceTimersByTimeAsync(LOST_MS - 200)
    expect(lost).toEqual([])
    await vi.advanceTimersByTimeAsync(400)
    expect(lost).toEqual(['wrk_1'])
  })

  it('reports no worker as lost until a whole lease after the control channel has recovered', async () => {
    const channel = fragile()
    const { presence, silent, lost } = await join('ing_1', { broker: channel.broker })
    await join('wrk_alive', { broker: channel.broker })
    await vi.advanceTimersByTimeAsync(1_000)
    await say(beatOf('wrk_dead'))
    channel.isDown = true
    await vi.advanceTimersByTimeAsync(60_000)
    expect([silent, lost]).toEqual([[], []])
    expect(presence.silenceMs).toBeGreaterThan(55_000)
    channel.isDown = false
    await vi.advanceTimersByTimeAsync(LOST_MS - 1_000)
    expect(lost).toEqual([])
    expect(presence.silenceMs).toBeLessThanOrEqual(1_000)
    await vi.advanceTimersByTimeAsync(3_000)
    expect(lost).toEqual(['wrk_dead'])
  })

  it('suspects no worker if the control channel delays heartbeats by up to three seconds', async () => {
    const channel = fragile()
    const { silent } = await join('ing_1', { broker: channel.broker })
    await join('wrk_1', { broker: channel.broker })
    for (let lateMs = 100; lateMs < 3_000; lateMs += 100) {
      channel.isDown = true
      await vi.advanceTimersByTimeAsync(lateMs)
      channel.isDown = false
      await vi.advanceTimersByTimeAsync(3_000)
    }
    expect(silent).toEqual([])
  })

  it('reports no worker as lost if only its own process was suspended', async () => {
    const { silent, lost } = await join('ing_1')
    await say(beatOf('wrk_1'))
    // The clock jumps forward, as after a suspension of the machine. By the clock, the heartbeats are overdue, but no timer has fired yet.
    vi.setSystemTime(Date.now() + 3_600_000)
    await vi.advanceTimersByTimeAsync(SILENT_MS - 1_000)
    expect([silent, lost]).toEqual([[], []])
    await vi.advanceTimersByTimeAsync(LOST_MS - SILENT_MS)
    expect(lost).toEqual([])
  })

  it('sends one heartbeat per second instead of two in a fleet above 100 processes', async () => {
    const { presence, silent, lost } = await join('ing_1')
    const others = largeFleet()
    await vi.advanceTimersByTimeAsync(3_000)
    const before = others.beatsOf('ing_1')
    await vi.advanceTimersByTimeAsync(20_000)
    expect(others.beatsOf('ing_1') - before).toBe(20)
    expect([silent, lost, presence.heartbeatMs, presence.silenceMs]).toEqual([[], [], 1_000, 0])

    others.stop('wrk_7')
    await vi.advanceTimersByTimeAsync(SILENT_MS)
    expect(silent).toEqual([])
    await vi.advanceTimersByTimeAsync(1_200)
    expect([silent, lost]).toEqual([['wrk_7'], []])
    await vi.advanceTimersByTimeAsync(LOST_MS - SILENT_MS)
    expect(lost).toEqual(['wrk_7'])
    others.close()
  })

  it('sends one heartbeat per second while idle, and two per second while busy', async () => {
    let running = 0
    const { presence, silent, lost } = await join('ing_1', { running: () => running })
    const worker = await join('wrk_1', { running: () => 0 })
    const beats = { ing_1: 0, wrk_1: 0 }
    await broker.receive(CONTROL, [0], ({ value }) => {
      const { type, boot } = JSON.parse(value.toString())
      if (type === 'heartbeat') beats[boot as keyof typeof beats]++
    })
    await vi.advanceTimersByTimeAsync(6_000)
    Object.assign(beats, { ing_1: 0, wrk_1: 0 })
    await vi.advanceTimersByTimeAsync(10_000)
    expect([beats, presence.heartbeatMs]).toEqual([{ ing_1: 10, wrk_1: 10 }, 1_000])
    running = 1
    Object.assign(beats, { ing_1: 0, wrk_1: 0 })
    await vi.advanceTimersByTimeAsync(10_000)
    expect([beats, presence.heartbeatMs]).toEqual([{ ing_1: 20, wrk_1: 10 }, 500])
    expect([silent, lost, worker.silent]).toEqual([[], [], []])
  })

  it('suspects an idle process one second later than a busy one', async () => {
    const { silent } = await join('ing_1')
    await say(beatOf('wrk_1'))
    await say({ type: 'heartbeat_interval', boot: 'wrk_1', interval_ms: 1_000 })
    await vi.advanceTimersByTimeAsync(SILENT_MS + 900)
    expect(silent).toEqual([])
    await vi.advanceTimersByTimeAsync(600)
    expect(silent).toEqual(['wrk_1'])
  })

  it('sends two heartbeats per second in a large fleet if one process states no heartbeat interval', async () => {
    const { presence } = await join('ing_1')
    const others = largeFleet()
    await vi.advanceTimersByTimeAsync(3_000)
    expect(presence.heartbeatMs).toBe(1_000)
    const old = setInterval(() => void say(beatOf('wrk_old')), 500)
    await vi.advanceTimersByTimeAsync(1_000)
    const before = others.beatsOf('ing_1')
    await vi.advanceTimersByTimeAsync(10_000)
    expect(others.beatsOf('ing_1') - before).toBe(20)
    clearInterval(old)
    others.close()
  })

  it('suspects no process of a large fleet if the control channel delays heartbeats by up to four seconds', async () => {
    const channel = fragile()
    const { silent } = await join('ing_1', { broker: channel.broker })
    const others = largeFleet((record) => channel.broker.send(CONTROL, 0, '', Buffer.from(JSON.stringify(record))))
    await vi.advanceTimersByTimeAsync(5_000)
    for (let lateMs = 500; lateMs < 4_000; lateMs += 500) {
      channel.isDown = true
      await vi.advanceTimersByTimeAsync(lateMs)
      channel.isDown = false
      await vi.advanceTimersByTimeAsync(3_000)
    }
    expect(silent).toEqual([])
    others.close()
  })

  it('forwards messages about jobs to its listeners, but no heartbeats', async () => {
    const heard: ControlRecord[] = []
    await join('wrk_1', { listener: { onControl: (record) => heard.push(record) } })
    const { presence } = await join('ing_1')
    const records: ControlRecord[] = [
      { type: 'cancel', job_id: 'job_1' },
      { type: 'pause', job_id: 'job_1', attempt: 1 },
      { type: 'resume', job_id: 'job_1', attempt: 1 },
    ]
    for (const record of records) presence.send(record)
    await vi.advanceTimersByTimeAsync(3_000)
    expect(heard).toEqual(records)
  })

  it('ignores messages that it cannot parse', async () => {
    const { presence, lost } = await join('ing_1')
    for (const garbage of ['', '{', 'null', '[]', '{"type":"dance"}', '{"type":"goodbye"}', '\u0000'])
      await say(garbage)
    await say({ ...beatOf('wrk_1'), slots: -1 } as ControlRecord)
    await say(beatOf('wrk_2'))
    expect(presence.workers('inference').map((peer) => peer.boot)).toEqual(['wrk_2'])
    expect(lost).toEqual([])
  })

  it('sends and receives nothing after it was closed', async () => {
    const { presence } = await join('ing_1')
    await presence.close()
    await presence.close()
    const heard: ControlRecord[] = []
    await broker.receive(CONTROL, [0], (record) => heard.push(JSON.parse(record.value.toString())))
    await say(beatOf('wrk_1'))
    await vi.advanceTimersByTimeAsync(10_000)
    expect(heard).toHaveLength(1)
    expect(presence.workers('inference')).toEqual([])
    expect(vi.getTimerCount()).toBe(0)
  })
})
