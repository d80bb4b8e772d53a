import { useEffect } from 'preact/hooks'

/** Calls `round` now and at an interval while the page is visible. A round in progress suppresses the next one. */
export function usePoll(
  everyMs: number,
  round: (signal: AbortSignal) => Promise<void>,
  inputs: readonly unknown[],
): void {
  useEffect(() => {
    const abort = new AbortController()
    let isBusy = false
    const tick = async () => {
      if (isBusy || document.hidden) return
      isBusy = true
      await round(abort.signal).finally(() => {
        isBusy = false
      })
    }
    const quietly = () => void tick().catch(() => {})
    quietly()
    const timer = setInterval(quietly, everyMs)
    document.addEventListener('visibilitychange', quietly)
    return () => {
      abort.abort()
      clearInterval(timer)
      document.removeEventListener('visibilitychange', quietly)
    }
  }, inputs)
}
