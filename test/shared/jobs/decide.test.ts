import fc from 'fast-check'
import { describe, expect, it, test } from 'vitest'
import { ERRORS, type ErrorBody, type ErrorCode } from '#schemas/error.ts'
import {
  type Decision,
  decide,
  type History,
  type Outcome,
  type RetryPolicy,
  withAttempts,
} from '#shared/jobs/decide.ts'

const POLICY: RetryPolicy = {
  triesMax: 3,
  crashesMax: 3,
  backoff: { baseMs: 200, maxMs: 4_000 },
  handBacksMax: 10,
  delayMsMax: 10_000,
}
const CODES = Object.keys(ERRORS) as ErrorCode[]
const FRESH: History = { tries: 1, crashes: 0, handBacks: 0, hasOutput: false, remainingMs: 60_000 }

function failed(code: ErrorCode, more: Partial<ErrorBody> = {}): Outcome {
  return { type: 'failed', error: { code, message: 'it failed', param: null, ...more } }
}

/** Formats a decision as its action. If the action is `fail`, then the error code is added. */
function inShort(decision: Decision): string {
  return decision.do === 'fail' ? `fail ${decision.error.code}` : decision.do
}

test.each<[string, Outcome, Partial<History>, boolean, string]>([
  ['completed without output', { type: 'completed' }, {}, true, 'complete'],
  ['has completed after output', { type: 'completed' }, { hasOutput: true, remainingMs: 0 }, false, 'complete'],
  ['was cancelled', { type: 'cancelled' }, {}, true, 'cancel'],
  ['was cancelled after output', { type: 'cancelled' }, { hasOutput: true }, true, 'cancel'],
  ['timed out', { type: 'timed_out' }, {}, true, 'fail timeout'],
  ['timed out after output', { type: 'timed_out' }, { hasOutput: true }, true, 'fail timeout'],
  ['was requeued', { type: 'handed_back' }, {}, true, 'retry'],
  ['was requeued without retry budget', { type: 'handed_back' }, { tries: 9 }, false, 'retry'],
  ['was requeued too often', { type: 'handed_back' }, { handBacks: 10 }, true, 'fail model_loading'],
  ['was requeued after output', { type: 'handed_back' }, { hasOutput: true }, true, 'fail worker_lost'],
  ['lost its worker once', { type: 'lost' }, { crashes: 1 }, true, 'retry'],
  ['lost its worker twice without retry budget', { type: 'lost' }, { crashes: 2 }, false, 'retry'],
  ['lost its worker three times', { type: 'lost' }, { crashes: 3 }, true, 'fail worker_lost'],
  ['lost its worker after output', { type: 'lost' }, { crashes: 1, hasOutput: true }, true, 'fail worker_lost'],
  ['failed once', failed('upstream_error'), {}, true, 'retry'],
  ['failed a second time', failed('upstream_error'), { tries: 2 }, true, 'retry'],
  ['failed a third time', failed('upstream_error'), { tries: 3 }, true, 'fail upstream_error'],
  ['lost its sandbox', failed('sandbox_lost'), {}, true, 'retry'],
  ['lost its sandbox a second time', failed('sandbox_lost'), { tries: 2 }, true, 'fail sandbox_lost'],
  ['failed permanently', failed('upstream_refused'), {}, true, 'fail upstream_refused'],
  ['failed after output', failed('upstream_error'), { hasOutput: true }, true, 'fail upstream_error'],
  ['failed without retry budget', failed('upstream_error'), {}, false, 'fail upstream_error'],
  ['failed shortly before its deadline', failed('upstream_error'), { remainingMs: 50 }, true, 'fail upstream_error'],
  ['failed with a Retry-After of 9 s', failed('overloaded', { retry_after_ms: 9_000 }), {}, true, 'retry'],
  [
    'failed with a Retry-After above the maximum delay',
    failed('overloaded', { retry_after_ms: 10_001 }),
    {},
    true,
    'fail overloaded',
  ],
])('an attempt that $0 leads to the decision "$4"', (_name, outcome, history, canSpend, expected) => {
  expect(inShort(decide(outcome, { ...FRESH, ...history }, POLICY, canSpend, 0.5))).toBe(expected)
})

it.each([
  [{}, 3, 'it failed. 3 attempts were made. Use another model, or try again later.'],
  [{}, 1, 'it failed. 1 attempt was made. Use another model, or try again later.'],
  [{ retry_after_ms: 6_100 }, 3, 'it failed. 3 attempts were made. Retry after 7 s, or use another model.'],
])('the error of an upstream after the last attempt (%j, %i attempts) has the message "%s"', (more, tries, message) => {
  const error = { code: 'upstream_error' as const, message: 'it failed.', param: null, ...more }
  expect(withAttempts(error, tries)).toMatchObject({ code: 'upstream_error', message })
})

describe('the retry decision for a random outcome and history', () => {
  const error = fc.record({
    code: fc.constantFrom(...CODES),
    message: fc.string(),
    param: fc.constant(null),
    retry_after_ms: fc.option(fc.nat(100_000), { nil: undefined }),
  })
  const outcome: fc.Arbitrary<Outcome> = fc.oneof(
    error.map((body) => ({ type: 'failed' as const, error: body as ErrorBody })),
    fc.constantFrom('completed', 'lost', 'handed_back', 'cancelled', 'timed_out').map((type) => ({ type }) as Outcome),
  )
  const history: fc.Arbitrary<History> = fc.record({
    tries: fc.integer({ min: 1, max: 10 }),
    crashes: fc.nat(10),
    handBacks: fc.nat(20),
    hasOutput: fc.boolean(),
    remainingMs: fc.integer({ min: -1_000, max: 600_000 }),
  })
  const random = fc.double({ min: 0, max: 1, maxExcluded: true, noNaN: true })
  const check = (holds: (o: Outcome, h: History, canSpend: boolean, random: number, decided: Decision) => boolean) =>
    fc.assert(
      fc.property(outcome, history, fc.boolean(), random, (o, h, canSpend, r) =>
        holds(o, h, canSpend, r, decide(o, h, POLICY, canSpend, r)),
      ),
    )

  it('is never a retry after output', () => {
    check((_o, h, _c, _r, decided) => !(h.hasOutput && decided.do === 'retry'))
  })

  it('preserves the error of the attempt, with its Retry-After, if no retry is possible', () => {
    check((o, h, canSpend, _r, decided) => {
      if (o.type !== 'failed') return true
      const isFinal = !ERRORS[o.error.code].retry || h.tries >= POLICY.triesMax || !canSpend
      if (!isFinal || decided.do !== 'fail') return !isFinal
      const { code, param, retry_after_ms } = decided.error
      const isSame = code === o.error.code && param === o.error.param && retry_after_ms === o.error.retry_after_ms
      return isSame && decided.error.message.startsWith(o.error.message)
    })
  })

  it('delays a retry by at least Retry-After, but not beyond the deadline', () => {
    check((o, h, _c, _r, decided) => {
      if (decided.do !== 'retry' || o.type !== 'failed') return true
      const { delayMs } = decided
      return delayMs < h.remainingMs && delayMs <= POLICY.delayMsMax && delayMs >= (o.error.retry_after_ms ?? 0)
    })
  })

  it('is a failure once the maximum number of workers is lost', () => {
    check((o, h, _c, _r, decided) => o.type !== 'lost' || h.crashes < POLICY.crashesMax || decided.do === 'fail')
  })

  it('is "complete" only for a completed attempt, and "cancel" only for a cancelled attempt', () => {
    check(
      (o, _h, _c, _r, decided) =>
        (decided.do === 'complete') === (o.type === 'completed') &&
        (decided.do === 'cancel') === (o.type === 'cancelled'),
    )
  })

  it('is equal for equal inputs', () => {
    check((o, h, canSpend, r, decided) => {
      expect(decide(o, h, POLICY, canSpend, r)).toEqual(decided)
      return true
    })
  })
})
