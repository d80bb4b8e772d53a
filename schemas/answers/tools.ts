import { z } from 'zod'
import { ModerationResult } from '#schemas/moderations.ts'
import { Word } from '#schemas/transcription/transcription.ts'

const Count = z.int().min(0)

/** The answer of `POST /v1/embeddings` (docs/embeddings.md). */
export const EmbeddingsAnswer = z.object({
  object: z.literal('list'),
  data: z.array(
    z.object({
      object: z.literal('embedding'),
      index: Count,
      embedding: z
        .union([z.array(z.number()), z.string()])
        .describe('Numbers, or base64 of little-endian float32 with encoding_format'),
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

/** The answers of `POST /v1/audio/transcriptions` that are JSON; which fields there are, response_format says (docs/transcription.md). */
export const TranscriptAnswer = z.looseObject({
  text: z.string(),
  task: z.literal('transcribe').optional(),
  language: z.string().optional(),
  duration: z.number().optional().describe('Seconds'),
  segments: z.array(z.looseObject({ start: z.number(), end: z.number(), text: z.string() })).optional(),
  words: z.array(Word).optional(),
  usage: z.looseObject({ type: z.string() }).optional(),
})

/** The answer of `POST /v1/rerank`, nearest first. */
export const RerankAnswer = z.looseObject({
  model: z.string(),
  results: z.array(
    z.object({
      index: z.int().min(0).describe('Place among the documents of the call'),
      document: z.object({ text: z.string() }).optional().describe('Where return_documents asks for it'),
      relevance_score: z.number().describe('Higher is nearer: the cosine to the query, or what the model says'),
    }),
  ),
})

/** The answer of `POST /v1/moderations` (docs/moderations.md). */
export const ModerationAnswer = z.object({
  id: z.string().startsWith('modr-'),
  model: z.string(),
  results: z.array(ModerationResult),
})

/** The answer of `POST /v1/audio/speech` where it is kept as a durable job (docs/speech.md). */
export const SpeechAnswer = z.object({
  object: z.literal('audio.speech'),
  content_type: z.string(),
  audio: z.string().describe('Base64'),
  usage: z.object({ input_tokens: Count, output_tokens: Count, total_tokens: Count }),
})
