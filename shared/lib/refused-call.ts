/*
 * Calls that an open circuit breaker refused. The request log has the message of the error but no field for this case, so the message is written and
 * recognised here.
 */

/** Part of the message that only such an error has. */
export const REFUSED_TEXT = 'calls are paused until'
const DAY_SECONDS = 86_400

/**
 * States a time, because the message stays in the request log and on the page of the job.
 *
 * @param untilMs Time of the next call that may be sent
 * @param lastFailure The last failure, without a full stop
 */
export function refusedCallMessage(model: string, untilMs: number, lastFailure: string): string {
  const until = new Date(untilMs).toISOString().slice(11, 19)
  return `The upstream of model '${model}' keeps failing, so ${REFUSED_TEXT} ${until} UTC. Last error: ${lastFailure}.`
}

/**
 * Time of the next call that may be sent, in Unix seconds. Undefined if the message does not state that the call was refused.
 *
 * @param endedAt End of the refused call, in Unix seconds. The message has only the time of the day
 */
export function refusedUntilOf(message: string | null, endedAt: number): number | undefined {
  const [, time] = new RegExp(`${REFUSED_TEXT} (\\d\\d:\\d\\d:\\d\\d) UTC`).exec(message ?? '') ?? []
  if (time === undefined) return undefined
  const until = Date.parse(`${new Date(endedAt * 1_000).toISOString().slice(0, 10)}T${time}Z`) / 1_000
  // A pause ends at most a minute later. If it ends much earlier on the same day, then it began before midnight.
  return until < endedAt - DAY_SECONDS / 2 ? until + DAY_SECONDS : until
}
