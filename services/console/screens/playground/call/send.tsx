import { Icon } from '#services/console/parts/icon.tsx'
import type { Run } from './run.ts'

interface SendProps {
  readonly run: Run
  /** What it does, such as `Send`. */
  readonly label: string
  /** Whether there is something to send. */
  readonly isReady: boolean
}

/** Sends a form; while its call is under way it stops that. */
export function Send({ run, label, isReady }: SendProps) {
  return run.isBusy.value ? (
    <button key="stop" type="button" class="primary" onClick={() => run.stop()}>
      <Icon name="stop" /> Stop
    </button>
  ) : (
    <button key="send" type="submit" class="primary" disabled={!isReady}>
      <Icon name="send" /> {label}
    </button>
  )
}
