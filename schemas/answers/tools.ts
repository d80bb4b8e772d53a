import { z } from 'zod'
import { ModerationResult } from '#schemas/kinds/moderations.ts'
import { Word } from '#schemas/kinds/transcription.ts'

const Count = z.int().min(0)

export const EmbeddingsAnswer = z.object({
  object: z.literal('list'),
  data: z.array(
    z.object({
      object: z.literal('embedding'),
      index: Count,
      embedding: z
        .union([z.array(z.number()), z.string()])
        .describe('Numbers. With encoding_format base64: base64 of little-endian float32 values'),
    }),
  ),
  model: z.string(),
  usage: z.object({
    prompt_tokens: Count,
    completion_tokens: z.literal(0),
    total_tokens: Count,
    prompt_tokens_details: z.null(),
    completion_tokens_details: z.null(),
  }),
})

/** JSON responses of `POST /v1/audio/transcriptions` (docs/guides/transcription.md). `response_format` selects the fields. */
export const TranscriptAnswer = z.looseObject({
  text: z.string(),
  task: z.literal('transcribe').optional(),
  language: z.string().optional(),
  duration: z.number().optional().describe('Length of the audio, in seconds'),
  segments: z.array(z.looseObject({ start: z.number(), end: z.number(), text: z.string() })).optional(),
  words: z.array(Word).optional(),
  usage: z.looseObject({ type: z.string() }).optional(),
})

/** Response of `POST /v1/rerank`, most relevant document first. */
export const RerankAnswer = z.looseObject({
  model: z.string(),
  results: z.array(
    z.object({
      index: z.int().min(0).describe('Index of the document in the request'),
      document: z.object({ text: z.string() }).optional().describe('Present only with return_documents'),
      relevance_score: z
        .number()
        .describe('Higher is more relevant: cosine similarity to the query, or the score of a reranking model'),
    }),
  ),
})

/** Response of `POST /v1/moderations` (docs/guides/moderations.md). */
export const ModerationAnswer = z.object({
  id: z.string().startsWith('modr-'),
  model: z.string(),
  results: z.array(ModerationResult),
})

/** Result of `POST /v1/audio/speech` as a durable job (docs/guides/speech.md). */
export const SpeechAnswer = z.object({
  object: z.literal('audio.speech'),
  content_type: z.string(),
  audio: z.string().describe('Audio file, in base64'),
  usage: z.object({ input_tokens: Count, output_tokens: Count, total_tokens: Count }),
})
