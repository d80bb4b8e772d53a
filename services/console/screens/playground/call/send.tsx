import { Icon } from '#services/console/parts/icon.tsx'
import type { Run } from './run.ts'

interface SendProps {
  readonly run: Run
  readonly label: string
  readonly isReady: boolean
}

/** A submit button that becomes a Stop button while the request is in flight. */
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
