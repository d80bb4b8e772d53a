import { fetchJson, type Pause } from '#services/console/api/client.ts'
import { Confirm } from './parts.tsx'

interface PauseButtonProps {
  readonly target: Pause['target']
  readonly id: string
  readonly isPaused: boolean
  /** Loads the list of the screen again. */
  readonly refresh: () => Promise<void>
}

/** Button that pauses or resumes a model or a pool in the whole fleet, after a confirmation. */
export function PauseButton({ target, id, isPaused, refresh }: PauseButtonProps) {
  const change = async () => {
    const path = `/v1/admin/${target}s/${encodeURIComponent(id)}/${isPaused ? 'resume' : 'pause'}`
    await fetchJson(path, { method: 'POST' })
    await refresh()
  }
  return (
    <Confirm
      verb={isPaused ? 'Resume' : 'Pause'}
      what={target === 'pool' ? `pool ${id}` : id}
      keep={isPaused ? 'Keep paused' : 'Keep running'}
      action={change}
    >
      {isPaused ? (
        <p>Queued jobs of this {target} start again, before new ones.</p>
      ) : (
        <p>
          In the whole fleet, jobs of this {target} stay queued and new calls get a 503. Running work finishes.{' '}
          {target === 'model' && 'The model still serves as a fallback of other models. '}You can resume it at any time.
        </p>
      )}
    </Confirm>
  )
}
