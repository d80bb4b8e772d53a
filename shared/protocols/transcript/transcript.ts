import type { TranscribeEvent } from '#schemas/transcription.ts'
import type { Answer } from '#shared/kinds/answer.ts'
import { TranscriptStream } from './stream.ts'
import { encodeTranscript } from './whole.ts'

/** Transcripts (docs/protocol.md, Transcripts), in the form that the job asks for. */
export const transcriptAnswer: Answer<TranscribeEvent> = {
  whole: encodeTranscript,
  open: (context) => new TranscriptStream(context),
}
