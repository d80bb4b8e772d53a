import type { TranscribeEvent, TranscribeRequest, TranscriptSegment } from '#schemas/kinds/transcription.ts'
import type { Turn } from '#shared/engines/engine.ts'
import type { Progress } from '#shared/kinds/kind.ts'
import { SpeakerLabels } from './speakers.ts'

export interface DiarizeOptions {
  readonly request: Pick<TranscribeRequest, 'speakers' | 'words'>
  readonly signal: AbortSignal
  /**
   * If true, then transcription and diarization start together, because they run on different machines. If false, then the diarization starts after
   * the first text.
   */
  readonly isTogether: boolean
  readonly onProgress: ((progress: Progress) => void) | undefined
}

/**
 * Adds speakers to the segments of a transcription. Texts are emitted at once, and segments wait until the diarization has found the speaker turns.
 *
 * @param transcribe Starts the transcription, whose words should have times.
 * @param diarize Starts the diarization. If transcription or diarization fails, then the other is aborted.
 * @throws ServiceError The error of the failed operation
 */
export async function* withSpeakers(
  transcribe: (signal: AbortSignal) => AsyncIterable<TranscribeEvent>,
  diarize: (signal: AbortSignal) => Promise<Turn[]>,
  { request, signal, isTogether, onProgress }: DiarizeOptions,
): AsyncGenerator<TranscribeEvent> {
  const stop = new AbortController()
  const either = AbortSignal.any([signal, stop.signal])
  const speakers = new Speakers(
    () => diarize(either),
    request,
    (error) => stop.abort(error),
  )
  try {
    if (isTogether) speakers.start()
    for await (const event of transcribe(either)) {
      // If both run on this machine, then diarization starts after the first text, so that the caller receives text as early as possible.
      if (event.type === 'text') speakers.start()
      if (event.type === 'segment') speakers.hold(event.segment)
      if (event.type === 'usage' && speakers.isBehind) {
        onProgress?.({ phase: 'diarizing', percent: null, message: 'Identifying speakers' })
        await speakers.untilKnown()
      }
      for (const segment of speakers.take()) yield { type: 'segment', segment }
      if (event.type !== 'segment') yield event
    }
  } finally {
    stop.abort()
  }
}

/** The speaker turns, available once the diarization has finished, and the segments that wait for them. */
class Speakers {
  readonly #diarize: () => Promise<Turn[]>
  readonly #request: DiarizeOptions['request']
  readonly #onFailure: (error: unknown) => void
  #work: Promise<void> | undefined
  #labels: SpeakerLabels | undefined
  #held: TranscriptSegment[] = []

  constructor(diarize: () => Promise<Turn[]>, request: DiarizeOptions['request'], onFailure: (error: unknown) => void) {
    this.#diarize = diarize
    this.#request = request
    this.#onFailure = onFailure
  }

  get isBehind(): boolean {
    return this.#held.length > 0 && !this.#labels
  }

  start(): void {
    if (this.#work) return
    this.#work = this.#find()
    // A failure aborts the transcription. The consumer receives the same error from `untilKnown`, so it is not lost.
    this.#work.catch(this.#onFailure)
  }

  async untilKnown(): Promise<void> {
    this.start()
    await this.#work
  }

  hold(segment: TranscriptSegment): void {
    this.#held.push(segment)
  }

  /** Removes and returns the waiting segments, with their speakers. Empty until the diarization has finished. */
  take(): TranscriptSegment[] {
    if (!this.#labels) return []
    const held = this.#held
    this.#held = []
    return held.flatMap((segment) => this.#labels?.split(segment) ?? []).map((segment) => this.#asAsked(segment))
  }

  async #find(): Promise<void> {
    const turns = await this.#diarize()
    this.#labels = new SpeakerLabels(
      turns,
      this.#request.speakers.map(({ name }) => name),
    )
  }

  /** Removes the words of a segment, which were needed to find its speaker, unless the request selects words. */
  #asAsked({ words, ...segment }: TranscriptSegment): TranscriptSegment {
    return this.#request.words && words ? { ...segment, words } : segment
  }
}
