import { describe, expect, it } from 'vitest'
import { checkHistory, describeSmallest } from './check.ts'
import type { Entry, Of, Recorded } from './history.ts'

const ID = 'job_1'
const KEY = 'chaos-1-0'
const INGRESS = 'http://one'
const END = { status: 'completed', attempt: 1, hash: 'aaaa' }

type Row = Omit<Of<'row'>, 'at_ms' | 'actor' | 'type'>

function row(changes: Partial<Row> = {}): Entry {
  const base: Row = {
    job_id: ID,
    key: KEY,
    pool: 'inference',
    state: 'completed',
    attempt: 1,
    tries: 0,
    crashes: 0,
    last_seq: 4,
    is_cancel_requested: false,
    started_at_wall_ms: 1_500,
    created_at_wall_ms: 1_000,
    finished_at_wall_ms: 2_000,
    error: null,
    text: 'hello',
  }
  return { type: 'row', ...base, ...changes }
}

function stored(seq: number, event: string, more: { attempt?: number; text?: string; reason?: string } = {}): Entry {
  const { attempt = event === 'job.queued' ? 0 : 1, reason, ...rest } = more
  const reset = event === 'job.retrying' && { reset: true }
  return {
    type: 'event',
    job_id: ID,
    seq,
    event,
    attempt,
    wall_ms: 10_000,
    ...reset,
    ...(reason && { reason }),
    ...rest,
  }
}

function frame(seq: number, event: string, more: { text?: string; end?: typeof END; reset?: boolean } = {}): Entry {
  return { type: 'frame', job_id: ID, follower: 'follower-1', ingress: INGRESS, seq, event, ...more }
}

const expectation = (changes: object = {}) => ({ stream: true, text: 'hello', is_cancelled: false, ...changes })
const submitted = (expect = expectation()): Entry[] => [
  { type: 'submit', phase: 'invoke', key: KEY, ingress: INGRESS, expect },
  { type: 'submit', phase: 'ok', key: KEY, ingress: INGRESS, job_id: ID },
]
const follow = (phase: 'open' | 'cut' | 'end'): Entry => ({
  type: 'follow',
  phase,
  job_id: ID,
  follower: 'follower-1',
  ingress: INGRESS,
  after: 0,
})
const EVENTS = [
  stored(1, 'job.queued'),
  stored(2, 'job.started'),
  stored(3, 'job.output.delta', { text: 'hello' }),
  stored(4, 'job.completed'),
]
const FRAMES = [
  frame(1, 'job.queued'),
  frame(2, 'job.started'),
  frame(3, 'job.output.delta', { text: 'hello' }),
  frame(4, 'job.completed', { end: END }),
]
const TWICE = [
  stored(1, 'job.queued'),
  stored(2, 'job.started'),
  stored(3, 'job.output.delta', { text: 'hel' }),
  stored(4, 'job.retrying', { reason: 'worker_lost' }),
  stored(5, 'job.started', { attempt: 2 }),
  stored(6, 'job.output.delta', { text: 'hello', attempt: 2 }),
  stored(7, 'job.completed', { attempt: 2 }),
]
const KILLED: Entry = { type: 'fault', phase: 'begin', kind: 'kill', target: 'inference-1' }
const run = (attempt: number, phase: 'start' | 'done' = 'start'): Entry => ({ type: 'run', phase, job_id: ID, attempt })

/** Returns the names of the rules that a history of these entries breaks. */
function broken(...entries: Entry[]): string[] {
  const begin: Entry = { type: 'begin', seed: 7, wall_ms: 0 }
  const records = [begin, ...entries].map((entry, at_ms) => ({ at_ms, actor: 'test', ...entry })) as Recorded[]
  return [...new Set(checkHistory(records).violations.map(({ rule }) => rule))]
}

describe('the checker of chaos histories', () => {
  it('accepts a history without injected faults', () => {
    const cut = [
      follow('open'),
      ...FRAMES.slice(0, 2),
      follow('cut'),
      follow('open'),
      ...FRAMES.slice(2),
      follow('end'),
    ]
    expect(broken(...submitted(), row(), ...EVENTS, ...cut, run(1), run(1, 'done'))).toEqual([])
  })

  it('accepts a second attempt of a job whose worker was killed', () => {
    const twice = row({ attempt: 2, crashes: 1, last_seq: 7 })
    expect(broken(...submitted(), KILLED, twice, ...TWICE, run(1), run(2))).toEqual([])
  })

  it.each(['inference-1', 'database'])(
    'accepts a second attempt after a fault of %s, even if no worker was killed',
    (target) => {
      const fault: Entry = { type: 'fault', phase: 'begin', kind: target === 'database' ? 'kill' : 'freeze', target }
      const twice = row({ attempt: 2, crashes: 0, last_seq: 7 })
      expect(broken(...submitted(), fault, twice, ...TWICE, run(1), run(2))).toEqual([])
    },
  )

  it.each<[string, string, Entry[]]>([
    ['an accepted job without a row', 'I1 lost', submitted()],
    ['a job seen in a stream and without a row', 'I1 lost', [frame(1, 'job.queued')]],
    ['an accepted job that never reaches an end state', 'I1 lost', [...submitted(), row({ state: 'queued' })]],
    [
      'a job that one replica does not find',
      'I1 lost',
      [
        ...submitted(),
        row(),
        ...EVENTS,
        { type: 'follow', phase: 'missing', job_id: ID, follower: 'f', ingress: INGRESS, after: 0 },
      ],
    ],
    [
      'a failed job without a fault that explains the failure',
      'I1 lost',
      [...submitted(), row({ state: 'failed', error: 'timeout' })],
    ],
    ['an expired job without a deadline', 'I1 lost', [...submitted(), row({ state: 'expired' })]],
    ['two terminal events', 'I2 terminal', [row({ last_seq: 5 }), ...EVENTS, stored(5, 'job.cancelled')]],
    [
      'an event after the terminal one',
      'I2 terminal',
      [row({ last_seq: 5 }), ...EVENTS, stored(5, 'job.output.delta', { text: '' })],
    ],
    ['a terminal event that differs from the row', 'I2 terminal', [row({ state: 'cancelled' }), ...EVENTS]],
    [
      'two readers with different results',
      'I2 terminal',
      [
        row(),
        ...EVENTS,
        { type: 'read', job_id: ID, ingress: INGRESS, end: END },
        { type: 'read', job_id: ID, ingress: INGRESS, end: { ...END, hash: 'bbbb' } },
      ],
    ],
    [
      'a reader that observed the end of another attempt',
      'I2 terminal',
      [row(), ...EVENTS, { type: 'read', job_id: ID, ingress: INGRESS, end: { ...END, attempt: 2 } }],
    ],
    ['a missing stored event', 'I4 numbered', [row(), ...EVENTS.filter((_, i) => i !== 1)]],
    ['a row that counts more events than exist', 'I4 numbered', [row({ last_seq: 5 }), ...EVENTS]],
    [
      'one attempt that starts twice',
      'I4 numbered',
      [
        row({ last_seq: 5 }),
        stored(1, 'job.queued'),
        stored(2, 'job.started'),
        stored(3, 'job.started'),
        stored(4, 'job.output.delta', { text: 'hello' }),
        stored(5, 'job.completed'),
      ],
    ],
    ['a result that differs from the expected one', 'I5 output', [...submitted(), row({ text: 'help' }), ...EVENTS]],
    [
      'output deltas whose concatenation differs from the result',
      'I5 output',
      [
        ...submitted(),
        row(),
        ...EVENTS.map((event) => (event.type === 'event' && event.seq === 3 ? { ...event, text: 'hel' } : event)),
      ],
    ],
    [
      'output of a lost attempt that was not reset',
      'I5 output',
      [
        ...submitted(),
        KILLED,
        row({ attempt: 2, crashes: 1, last_seq: 7 }),
        ...TWICE.map((event) => ({ ...event, reset: false }) as Entry),
      ],
    ],
    [
      'a gap in the events after a reconnect',
      'I6 resumed',
      [row(), ...EVENTS, follow('open'), ...FRAMES.slice(0, 2), follow('cut'), ...FRAMES.slice(3), follow('end')],
    ],
    [
      'a repeated event after a reconnect',
      'I6 resumed',
      [row(), ...EVENTS, follow('open'), ...FRAMES.slice(0, 2), follow('cut'), ...FRAMES.slice(1), follow('end')],
    ],
    [
      'an event stream that never ends',
      'I6 resumed',
      [row(), ...EVENTS, follow('open'), ...FRAMES.slice(0, 3), follow('cut')],
    ],
    [
      'a 204 response before the terminal event',
      'I6 resumed',
      [row(), ...EVENTS, ...FRAMES.slice(0, 3), follow('end')],
    ],
    [
      'an event that differs from the stored one',
      'I6 resumed',
      [row(), ...EVENTS, frame(1, 'job.started'), follow('open'), follow('end')],
    ],
    ['an execution without an attempt in the row', 'I7 executions', [row(), ...EVENTS, run(1), run(2)]],
    ['two executions in one attempt', 'I7 executions', [row(), ...EVENTS, run(1), run(1)]],
    [
      'a second start without a retrying event',
      'I7 executions',
      [
        row({ attempt: 2, last_seq: 5 }),
        stored(1, 'job.queued'),
        stored(2, 'job.started'),
        stored(3, 'job.started', { attempt: 2 }),
        stored(4, 'job.output.delta', { text: 'hello', attempt: 2 }),
        stored(5, 'job.completed', { attempt: 2 }),
      ],
    ],
    ['a lost execution without a retrying event', 'I7 executions', [KILLED, row({ crashes: 1 }), ...EVENTS]],
    [
      'a killed worker that the crash count of the row omits',
      'I7 losses',
      [KILLED, row({ attempt: 2, last_seq: 7 }), ...TWICE],
    ],
    ['a lost worker without a fault', 'I7 losses', [row({ attempt: 2, crashes: 1, last_seq: 7 }), ...TWICE]],
    [
      'a lost worker after an exit without a fault',
      'I7 losses',
      [{ type: 'exit', target: 'inference-1', code: '1' }, row({ attempt: 2, crashes: 1, last_seq: 7 }), ...TWICE],
    ],
    [
      'two jobs with one idempotency key',
      'I9 key',
      [...submitted(), row(), ...EVENTS, { type: 'submit', phase: 'ok', key: KEY, ingress: INGRESS, job_id: 'job_2' }],
    ],
    [
      'one job for two idempotency keys',
      'I9 key',
      [
        ...submitted(),
        row(),
        ...EVENTS,
        { type: 'submit', phase: 'ok', key: 'chaos-1-1', ingress: INGRESS, job_id: ID },
      ],
    ],
    [
      'a cancelled job that completed',
      'I10 cancelled',
      [
        ...submitted(expectation({ is_cancelled: true })),
        { type: 'cancel', phase: 'ok', job_id: ID, ingress: INGRESS, state: 'cancelled' },
        row(),
        ...EVENTS,
      ],
    ],
    [
      'a start before the scheduled time',
      'I11 start',
      [...submitted(expectation({ run_at_wall_ms: 5_000 })), row(), ...EVENTS],
    ],
  ])('reports %s as a violation of the rule %s', (_name, rule, entries) => {
    expect(broken(...entries)).toContain(rule)
  })

  it('accepts a submission whose response was lost, whether or not the submission created a job', () => {
    const unknown: Entry = { type: 'submit', phase: 'unknown', key: KEY, ingress: INGRESS }
    expect(broken(unknown)).toEqual([])
    expect(broken(unknown, row(), ...EVENTS)).toEqual([])
  })

  it('prints the seed and the shortest history of a job that broke a rule', () => {
    const other = { ...row({ state: 'queued' }), job_id: 'job_2', key: 'other' } as Entry
    const begin: Entry = { type: 'begin', seed: 7, wall_ms: 0 }
    const entries = [begin, ...submitted(), row({ state: 'queued' }), other]
    const records = entries.map((entry, at_ms) => ({ at_ms, actor: 'test', ...entry })) as Recorded[]
    const text = describeSmallest(checkHistory(records))
    expect(text).toContain('seed 7')
    expect(text).toContain('job_2')
    expect(text).toContain('I1 lost: state is still queued')
    expect(text).not.toContain(`${ID}:`)
  })
})
