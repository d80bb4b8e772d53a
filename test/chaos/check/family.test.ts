import { describe, expect, it } from 'vitest'
import { checkHistory } from './check.ts'
import type { Entry, Expectation, FamilyRow, Of, Recorded } from './history.ts'

const PARENT = 'job_parent'
const KEY = 'chaos-1-research-1'
const TAG = 'Tarn10001'
const INGRESS = 'http://one'
const STEPS = ['admit', 'clock', 'search']
const EXPECT: Expectation = {
  stream: false,
  text: 'Herons.',
  is_cancelled: false,
  research: { tag: TAG, report: 'aaaa', children: 2, steps: STEPS },
}

type Row = Omit<Of<'row'>, 'at_ms' | 'actor' | 'type'>

const row = (changes: Partial<Row>): Entry => ({
  type: 'row',
  job_id: PARENT,
  key: KEY,
  pool: 'research',
  state: 'completed',
  attempt: 1,
  tries: 0,
  crashes: 0,
  last_seq: 3,
  is_cancel_requested: false,
  started_at_wall_ms: 1_500,
  created_at_wall_ms: 1_000,
  finished_at_wall_ms: 5_000,
  error: null,
  text: null,
  ...changes,
})
const FAMILY: FamilyRow = {
  parent_id: null,
  children: 2,
  steps: 3,
  kept_steps: STEPS,
  request: 'question',
  report: 'aaaa',
  is_settled: true,
}
const parent = (changes: Partial<Row> = {}, family: Partial<FamilyRow> = {}) =>
  row({ attempt: 2, last_seq: 5, text: 'Herons.', family: { ...FAMILY, ...family }, ...changes })
const childFamily = (request: string): FamilyRow => {
  return { parent_id: PARENT, children: 0, steps: 0, kept_steps: [], request, report: null, is_settled: true }
}
const child = (id: string, changes: Partial<Row> = {}, request = id) =>
  row({
    job_id: id,
    key: id,
    pool: 'inference',
    created_at_wall_ms: 2_000,
    finished_at_wall_ms: 3_000,
    text: '{}',
    family: childFamily(request),
    ...changes,
  })

const stored = (job_id: string, ...types: string[]): Entry[] => {
  let attempt = 0
  return types.map((type, i) => {
    const [event = '', reason] = type.split(' ')
    if (event === 'job.started') attempt += 1
    const base = { type: 'event', job_id, seq: i + 1, attempt, event, wall_ms: Math.max(attempt, 1) * 10_000 } as const
    return reason === undefined ? base : { ...base, reason }
  })
}
const EVENTS = stored(PARENT, 'job.queued', 'job.started', 'job.waiting', 'job.started', 'job.completed')
const CANCELLED = [
  ...stored(PARENT, 'job.queued', 'job.started', 'job.waiting', 'job.cancelled'),
  ...submitted({ ...EXPECT, is_cancelled: true }),
]
const cancelled = (family: Partial<FamilyRow> = {}) =>
  parent({ state: 'cancelled', attempt: 1, last_seq: 4, is_cancel_requested: true, text: null }, family)
const done = (id: string) => stored(id, 'job.queued', 'job.started', 'job.completed')
const CHILDREN = [child('job_plan'), ...done('job_plan'), child('job_note'), ...done('job_note')]
const asked = (what: string, wall_ms = 10_000): Entry => {
  return { type: 'outside', phase: 'answered', tag: TAG, what, wall_ms }
}
/** Returns an entry at 20 s. In every history of this file, the second attempt starts at this time. */
const later = (what: string) => asked(what, 20_000)
const run = (job_id: string): Entry => ({ type: 'run', phase: 'start', job_id, attempt: 1 })
const KILLED: Entry = { type: 'fault', phase: 'begin', kind: 'kill', target: 'research-1' }
const LOST = [
  ...submitted(),
  ...stored(PARENT, 'job.queued', 'job.started', 'job.retrying worker_lost', 'job.started', 'job.completed'),
  parent({ crashes: 1 }),
  ...CHILDREN,
  asked('search herons'),
  later('search herons'),
]

function submitted(expected: Expectation = EXPECT): Entry[] {
  return [
    { type: 'submit', phase: 'invoke', key: KEY, ingress: INGRESS, expect: expected },
    { type: 'submit', phase: 'ok', key: KEY, ingress: INGRESS, job_id: PARENT },
  ]
}

/** Returns the events of a research whose last attempt has a pause of `ms` milliseconds. */
function pausedFor(ms: number): Entry[] {
  return EVENTS.map((entry, i) =>
    i === 4 && entry.type === 'event' ? { ...entry, wall_ms: entry.wall_ms + ms } : entry,
  )
}

/** Returns the names of the rules that a history of these entries breaks. */
function broken(...entries: Entry[]): string[] {
  const begin: Entry = { type: 'begin', seed: 7, wall_ms: 0 }
  const records = [begin, ...entries].map((entry, at_ms) => ({ at_ms, actor: 'test', ...entry })) as Recorded[]
  return [...new Set(checkHistory(records).violations.map(({ rule }) => rule))]
}

describe('the checker of chaos histories of deep research', () => {
  it('accepts a history without faults', () => {
    const outside = [asked('search herons'), run('job_plan'), run('job_note')]
    expect(broken(...submitted(), ...EVENTS, parent(), ...CHILDREN, ...outside)).toEqual([])
  })

  it('accepts one repeated upstream request after a worker was killed', () => {
    expect(broken(KILLED, ...LOST)).toEqual([])
  })

  it('accepts one repetition of a search that timed out', () => {
    const outside = [asked('search herons'), asked('search herons')]
    expect(broken(...submitted(), ...EVENTS, parent(), ...CHILDREN, ...outside)).toEqual([])
  })

  it('accepts a cancelled child job of a cancelled research', () => {
    const family = { children: 1, steps: 1, kept_steps: ['admit'], report: null }
    const ended = child('job_plan', { state: 'cancelled', is_cancel_requested: true, finished_at_wall_ms: 5_300 })
    const events = stored('job_plan', 'job.queued', 'job.started', 'job.cancelled')
    expect(broken(...CANCELLED, cancelled(family), ended, ...events)).toEqual([])
  })

  it('accepts a report without the result of a child job whose worker died in three attempts', () => {
    const lost = ['job.started', 'job.retrying worker_lost', 'job.started', 'job.retrying worker_lost', 'job.started']
    const events = stored('job_note', 'job.queued', ...lost, 'job.failed')
    const failed = child('job_note', { state: 'failed', attempt: 3, crashes: 3, last_seq: 7 })
    const fault: Entry = { ...KILLED, target: 'inference-1' } as Entry
    const plain = parent({ text: 'Quotes.' }, { report: 'bbbb', steps: 1, kept_steps: ['admit'] })
    const whole = [child('job_plan'), ...done('job_plan')]
    expect(broken(fault, ...submitted(), ...EVENTS, plain, ...whole, failed, ...events)).toEqual([])
  })

  it('accepts a report with fewer findings only if the worker was paused for at least 8 s', () => {
    const plain = parent({ text: 'Nothing was read.' }, { report: 'bbbb', steps: 1, kept_steps: ['admit'] })
    expect(broken(...submitted(), ...pausedFor(8_000), plain, ...CHILDREN)).toEqual([])
    expect(broken(...submitted(), ...pausedFor(7_000), plain, ...CHILDREN)).toContain('I5 output')
  })

  it.each<[string, string, Entry[]]>([
    ['a research without a row', 'I1 lost', [...submitted(), ...CHILDREN]],
    [
      'a research that never reaches an end state',
      'I1 lost',
      [...submitted(), parent({ state: 'waiting', finished_at_wall_ms: null }), ...CHILDREN],
    ],
    [
      'a child job that never reaches an end state',
      'I1 lost',
      [...submitted(), parent(), child('job_plan', { state: 'queued', finished_at_wall_ms: null })],
    ],
    [
      'a cancelled child job whose parent was not cancelled',
      'I1 lost',
      [...submitted(), ...EVENTS, parent(), ...CHILDREN.slice(4), child('job_plan', { state: 'cancelled' })],
    ],
    ['a child job with two end events', 'I2 terminal', [...CHILDREN, ...stored('job_plan', 'job.failed')]],
    [
      'a result that differs from the expected text',
      'I5 output',
      [...submitted(), ...EVENTS, parent({ text: 'Storks.' }), ...CHILDREN],
    ],
    [
      'a report that differs from the expected report',
      'I5 output',
      [...submitted(), ...EVENTS, parent({}, { report: 'bbbb' }), ...CHILDREN],
    ],
    [
      'a start without a wait or a retry before it',
      'I7 executions',
      [parent(), ...stored(PARENT, 'job.queued', 'job.started', 'job.started', 'job.completed')],
    ],
    [
      'a child job that was executed twice in one attempt',
      'I7 executions',
      [...CHILDREN, run('job_plan'), run('job_plan')],
    ],
    [
      'a lost worker after a kill in another pool',
      'I7 losses',
      [{ ...KILLED, target: 'inference-1' } as Entry, ...LOST],
    ],
    [
      'a start after a cancel',
      'I10 cancelled',
      stored(PARENT, 'job.queued', 'job.started', 'job.cancelling', 'job.retrying', 'job.started', 'job.cancelled'),
    ],
    [
      'a repeated search without a fault that explains it',
      'I12 steps',
      [...submitted(), ...EVENTS, parent(), ...CHILDREN, asked('search herons'), later('search herons')],
    ],
    [
      'a search that one attempt repeats several times',
      'I12 steps',
      [...submitted(), ...EVENTS, parent(), ...CHILDREN, ...Array(3).fill(asked('search herons'))],
    ],
    ['a search that was repeated twice after one fault', 'I12 steps', [KILLED, ...LOST, asked('search herons', 1)]],
    ['a missing stored step', 'I12 steps', [...submitted(), parent({}, { kept_steps: ['admit', 'search'] })]],
    [
      'a stored step that a run without faults does not have',
      'I12 steps',
      [...submitted(), parent({}, { steps: 4, kept_steps: [...STEPS, 'weigh'] }), ...CHILDREN],
    ],
    [
      'a child job created twice',
      'I13 children',
      [...submitted(), ...EVENTS, parent({}, { children: 3 }), ...CHILDREN, child('job_twin', {}, 'job_note')],
    ],
    [
      'a second child job that its parent does not reference',
      'I13 children',
      [...submitted(), ...EVENTS, parent(), ...CHILDREN, child('job_third')],
    ],
    ['a missing child job', 'I13 children', [...submitted(), ...EVENTS, parent(), ...CHILDREN.slice(4)]],
    ['a missing parent job', 'I13 children', CHILDREN],
    [
      'a child job that continues after its parent was cancelled',
      'I13 outlived',
      [...CANCELLED, cancelled(), child('job_plan', { finished_at_wall_ms: 26_000 })],
    ],
    [
      'a child job that continues after it and its parent were cancelled',
      'I13 outlived',
      [...CANCELLED, cancelled(), child('job_plan', { finished_at_wall_ms: 70_000, is_cancel_requested: true })],
    ],
    [
      'a child job that continues after its parent failed',
      'I13 outlived',
      [parent({ state: 'failed' }), child('job_plan', { state: 'in_progress', finished_at_wall_ms: null })],
    ],
    [
      'a child job that continues after its parent completed',
      'I13 outlived',
      [...submitted(), ...EVENTS, parent(), ...CHILDREN.slice(4), child('job_plan', { finished_at_wall_ms: 5_001 })],
    ],
    [
      'a child job that was submitted after the end of its parent',
      'I13 outlived',
      [...CANCELLED, cancelled(), child('job_plan', { created_at_wall_ms: 5_001, finished_at_wall_ms: 5_002 })],
    ],
    [
      'a family whose end was not propagated to its members',
      'I13 outlived',
      [...submitted(), ...EVENTS, parent({}, { is_settled: false }), ...CHILDREN],
    ],
  ])('reports %s as a violation of the rule %s', (_name, rule, entries) => {
    expect(broken(...entries)).toContain(rule)
  })
})
