import type { Progress } from '#shared/kinds/kind.ts'

/** Progress is told at most twice a second (docs/protocol.md, Job events). */
const PROGRESS_MS = 500

/**
 * Turns seconds of audio that are done into what people who wait see.
 *
 * @param duration Seconds of the audio; undefined where nobody knows.
 */
export function tellProgress(
  onProgress: (progress: Progress) => void,
  duration: number | undefined,
): (seconds: number) => void {
  let toldAt = Number.NEGATIVE_INFINITY
  return (seconds) => {
    if (performance.now() - toldAt < PROGRESS_MS) return
    toldAt = performance.now()
    const done = Math.floor(seconds)
    // The end is told by the job's own end.
    const percent = duration ? Math.min(99, Math.floor((100 * seconds) / duration)) : null
    const message = duration ? `${done} of ${Math.ceil(duration)} seconds` : `${done} seconds`
    onProgress({ phase: 'transcribing', percent, message })
  }
}
