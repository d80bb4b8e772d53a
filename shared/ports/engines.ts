import type { ModelConfig } from '#schemas/models.ts'
import type { Config } from '#shared/config/config.ts'
import { openWordList } from '#shared/content-filter/word-list.ts'
import { openAnthropicEngine } from '#shared/engines/anthropic/anthropic.ts'
import type { AudioTools } from '#shared/engines/audio-tools.ts'
import type { ChatEngine } from '#shared/engines/chat.ts'
import { openEchoEngine } from '#shared/engines/echo/echo.ts'
import type { EmbeddingEngine } from '#shared/engines/embedding.ts'
import { openLlamaEngine } from '#shared/engines/llama/llama.ts'
import { LocalAudioTools } from '#shared/engines/local/audio-tools.ts'
import { openLocalEmbeddings, openLocalTranscription } from '#shared/engines/local/local.ts'
import type { ModerationEngine } from '#shared/engines/moderation.ts'
import { openOpenAiEngine } from '#shared/engines/openai/chat.ts'
import { openOpenAiEmbeddings } from '#shared/engines/openai/embeddings.ts'
import { openOpenAiModeration } from '#shared/engines/openai/moderations.ts'
import { openUpstreamRerank } from '#shared/engines/openai/rerank.ts'
import { openOpenAiSpeech } from '#shared/engines/openai/speech.ts'
import { openOpenAiTranscription } from '#shared/engines/openai/transcript/transcription.ts'
import type { RerankEngine } from '#shared/engines/rerank.ts'
import type { SpeechEngine } from '#shared/engines/speech.ts'
import type { TranscriptionEngine } from '#shared/engines/transcription.ts'
import type { UpstreamFleet } from '#shared/engines/upstream/share.ts'
import { ServiceError } from '#shared/error.ts'

/** What engines of models are opened with. */
export interface EngineOptions {
  readonly config: Config
  /** See `Ports.upstreams`. */
  readonly upstreams: UpstreamFleet
  /** To the local model server. */
  readonly connect: Parameters<typeof openLocalEmbeddings>[1]
}

/** What opens the engine of a model, and what audio takes beside one. Whoever opens one closes it. */
export interface EngineOpeners {
  /** Of one that generates text. @throws ServiceError `model_not_supported` */
  openChatEngine(model: ModelConfig): ChatEngine
  /** Of one that embeds texts. */
  openEmbeddingEngine(model: ModelConfig): EmbeddingEngine
  /** Of one that reranks. */
  openRerankEngine(model: ModelConfig): RerankEngine
  /** Of one that moderates. */
  openModerationEngine(model: ModelConfig): ModerationEngine
  /** The moderation engine that needs no model. */
  openWordList(): ModerationEngine
  /** Of one that speaks. */
  openSpeechEngine(model: ModelConfig): SpeechEngine
  /** Of one that transcribes. */
  openTranscriptionEngine(model: ModelConfig): TranscriptionEngine
  /** What decodes audio and tells speakers apart. */
  openAudioTools(): AudioTools
}

/** What opens the engines of models, here and behind HTTP. */
export function engineOpeners({ config, upstreams, connect }: EngineOptions): EngineOpeners {
  return {
    openChatEngine: (model) => openChat(model, config, upstreams),
    openEmbeddingEngine: (model) =>
      model.engine.type === 'local'
        ? openLocalEmbeddings(model, connect)
        : openOpenAiEmbeddings(model, config.env, upstreams.open(model)),
    openRerankEngine: (model) => openUpstreamRerank(model, config.env, upstreams.open(model)),
    openSpeechEngine: (model) => openOpenAiSpeech(model, config.env, upstreams.open(model)),
    openModerationEngine: (model) => openOpenAiModeration(model, config.env, upstreams.open(model)),
    openWordList,
    openTranscriptionEngine: (model) =>
      model.engine.type === 'local'
        ? openLocalTranscription(model, connect)
        : openOpenAiTranscription(model, config.env, upstreams.open(model)),
    openAudioTools: () => new LocalAudioTools(connect, config.transcriptionSlots),
  }
}

function openChat(model: ModelConfig, config: Config, fleet: UpstreamFleet): ChatEngine {
  switch (model.engine.type) {
    case 'openai':
      return openOpenAiEngine(model, config.env, fleet.open(model))
    case 'anthropic':
      return openAnthropicEngine(model, config.env, fleet.open(model))
    case 'llama':
      return openLlamaEngine(model, { weightsDir: config.weightsDir, modelsDir: config.modelsDir, prepare: true })
    case 'echo':
      return openEchoEngine(model)
    case 'local':
    case 'research':
      throw new ServiceError('model_not_supported', `The model '${model.id}' does not generate text.`)
  }
}
