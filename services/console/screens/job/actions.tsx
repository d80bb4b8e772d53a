import { askJson } from '#services/console/api/client.ts'
import type { AnyJob } from '#services/console/api/types.ts'
import { Copy } from '#services/console/parts/copy.tsx'
import { useDeed } from '#services/console/parts/deed.ts'
import { Icon } from '#services/console/parts/icon.tsx'
import { Refusal } from '#services/console/parts/refusal.tsx'
import { BASE, go } from '#services/console/place.ts'
import { isEnded } from '#services/console/screens/jobs/list.ts'

interface ActionsProps {
  readonly job: AnyJob
  /** The job belongs to the key's project. Otherwise the admin API is used. */
  readonly isOwn: boolean
  readonly onDone: () => Promise<void>
}

export function Actions({ job, isOwn, onDone }: ActionsProps) {
  const { isBusy, problem, act } = useDeed()
  const url = `${isOwn ? '/v1/jobs' : '/v1/admin/jobs'}/${job.id}`
  const cancel = () =>
    act(async () => {
      await askJson(`${url}/cancel`, { method: 'POST' })
      await onDone()
    })
  const redrive = () =>
    act(async () => {
      const { id } = await askJson<AnyJob>(`${url}/redrive`, { method: 'POST' })
      go(`${BASE}/jobs/${id}`)
    })
  const canRedrive = ['failed', 'cancelled', 'expired'].includes(job.status)
  return (
    <div class="actions">
      {!isEnded(job.status) && (
        <button type="button" onClick={() => void cancel()} disabled={isBusy.value || job.status === 'cancelling'}>
          <Icon name="stop" /> {job.status === 'cancelling' ? 'Cancelling…' : 'Cancel'}
        </button>
      )}
      {canRedrive && (
        <button type="button" class="primary" onClick={() => void redrive()} disabled={isBusy.value}>
          <Icon name="again" /> Run again
        </button>
      )}
      <Copy text={curlOf(url, job)} label="Copy as curl" />
      <Copy text={job.id} label="Copy ID" />
      <Refusal of={problem.value} />
    </div>
  )
}

/** Streams the events of an unfinished job, or reads a finished one. */
function curlOf(url: string, { status }: AnyJob): string {
  const what = isEnded(status) || url.startsWith('/v1/admin') ? '' : '/events'
  return `curl -N '${location.origin}${url}${what}' -H "Authorization: Bearer $SLUICE_API_KEY"`
}
