import type { TranscribeEvent, TranscribeRequest, TranscriptSegment } from '#schemas/transcription/transcription.ts'
import type { Turn } from '#shared/engines/audio-tools.ts'
import type { Progress } from '#shared/kinds/kind.ts'
import { SpeakerLabels } from './speakers.ts'

/** What telling speakers apart depends on. */
export interface DiarizeOptions {
  readonly request: Pick<TranscribeRequest, 'speakers' | 'words'>
  readonly signal: AbortSignal
  /** Words and speakers come from different machines, so that neither waits for the other. */
  readonly isTogether: boolean
  readonly onProgress: ((progress: Progress) => void) | undefined
}

/**
 * A transcription whose segments say who speaks. Its texts pass as they come; segments wait until the turns are known.
 *
 * @param transcribe Starts the transcription; its words should have times.
 * @param diarize Starts to find the turns. When either fails the other one is stopped.
 * @throws ServiceError that of whichever failed
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
      // On one machine the words go first: they are what the caller watches.
      if (event.type === 'text') speakers.start()
      if (event.type === 'segment') speakers.hold(event.segment)
      if (event.type === 'usage' && speakers.isBehind) {
        onProgress?.({ phase: 'diarizing', percent: null, message: 'Telling speakers apart' })
        await speakers.untilKnown()
      }
      for (const segment of speakers.take()) yield { type: 'segment', segment }
      if (event.type !== 'segment') yield event
    }
  } finally {
    stop.abort()
  }
}

/** The turns, once they are known, and the segments that wait for them. */
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

  /** There are segments whose speakers are not known yet. */
  get isBehind(): boolean {
    return this.#held.length > 0 && !this.#labels
  }

  /** Starts to find the turns, once. */
  start(): void {
    if (this.#work) return
    this.#work = this.#find()
    // Heard by whoever waits for it, and by the transcription, which is stopped.
    this.#work.catch(this.#onFailure)
  }

  async untilKnown(): Promise<void> {
    this.start()
    await this.#work
  }

  hold(segment: TranscriptSegment): void {
    this.#held.push(segment)
  }

  /** The segments that waited, with their speakers; none while those are not known. */
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

  /** Words were needed to tell speakers apart, which does not mean that they were asked for. */
  #asAsked({ words, ...segment }: TranscriptSegment): TranscriptSegment {
    return this.#request.words && words ? { ...segment, words } : segment
  }
}
