import type { DurableJob } from '#schemas/durable-job.ts'
import type { ChildCounts } from '#services/ingress/jobs/child-counts.ts'
import { jobObject } from '#services/ingress/jobs/object.ts'
import type { Wait } from './pending-reason.ts'

/**
 * A job as operators see it: whose it is, where it is and why, and nothing of what was asked or answered. So its result, the
 * words of its progress and the address of its webhook, which may hold a secret, are left out.
 *
 * @param waits Why it is not started; null: it does not wait; undefined: it was not looked at.
 * @param counts How far those are that it has others do; undefined: there are none, or it was not looked at.
 */
export function operatorJob(job: DurableJob, waits?: Wait | null, counts?: ChildCounts): Record<string, unknown> {
  const { result: _, progress, webhook, urls: __, ...shown } = jobObject(job, { counts })
  const url = `/v1/admin/jobs/${job.id}`
  return {
    ...shown,
    project: job.tenant,
    kind: job.kind,
    worker: job.owner,
    tries: job.tries,
    crashes: job.crashes,
    progress: numbersOf(progress),
    webhook:
      webhook === null ? null : { host: URL.parse(job.webhook_url ?? '')?.host ?? null, events: job.webhook_events },
    ...(waits !== undefined && { waits }),
    urls: { get: url, cancel: `${url}/cancel`, redrive: `${url}/redrive` },
  }
}

/** How far it is, without what it works on. */
function numbersOf(progress: unknown): object | null {
  const { phase = null, percent = null } = (progress ?? {}) as { phase?: unknown; percent?: unknown }
  return progress ? { phase, percent } : null
}
