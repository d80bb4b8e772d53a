import type { ModelConfig } from '#schemas/models.ts'
import type { Config } from '#shared/config/config.ts'
import { openWordList } from '#shared/content-filter/word-list.ts'
import { openAnthropicEngine } from '#shared/engines/anthropic/anthropic.ts'
import { openEchoEngine } from '#shared/engines/echo/echo.ts'
import type {
  AudioTools,
  ChatEngine,
  EmbeddingEngine,
  ModerationEngine,
  RerankEngine,
  SpeechEngine,
  TranscriptionEngine,
} from '#shared/engines/engine.ts'
import { openLlamaEngine } from '#shared/engines/llama/llama.ts'
import { LocalAudioTools, openLocalEmbeddings, openLocalTranscription } from '#shared/engines/local/local.ts'
import { openOpenAiEngine } from '#shared/engines/openai/chat.ts'
import { openOpenAiEmbeddings } from '#shared/engines/openai/embeddings.ts'
import { openOpenAiSpeech } from '#shared/engines/openai/speech.ts'
import { openOpenAiTranscription } from '#shared/engines/openai/transcript/transcription.ts'
import { openOpenAiModeration, openUpstreamRerank } from '#shared/engines/openai/whole.ts'
import type { UpstreamFleet } from '#shared/engines/upstream/limit-partition.ts'
import { ServiceError } from '#shared/lib/error.ts'
import type { Preparations } from '#shared/prepare/preparations.ts'

export interface EngineOptions {
  readonly config: Config
  readonly upstreams: UpstreamFleet
  readonly connect: Parameters<typeof openLocalEmbeddings>[1]
  readonly preparations: Preparations
}

/**
 * Opens the engine of a model according to its configuration. The engine runs in this process or behind HTTP. The caller must close it.
 *
 * `openChatEngine` throws ServiceError `model_not_supported` if the model does not generate text.
 */
export interface EngineOpeners {
  openChatEngine(model: ModelConfig): ChatEngine
  openEmbeddingEngine(model: ModelConfig): EmbeddingEngine
  openRerankEngine(model: ModelConfig): RerankEngine
  openModerationEngine(model: ModelConfig): ModerationEngine
  openWordList(): ModerationEngine
  openSpeechEngine(model: ModelConfig): SpeechEngine
  openTranscriptionEngine(model: ModelConfig): TranscriptionEngine
  openAudioTools(): AudioTools
}

export function engineOpeners({ config, upstreams, connect, preparations }: EngineOptions): EngineOpeners {
  return {
    openChatEngine: (model) => openChat(model, config, upstreams, preparations),
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

function openChat(model: ModelConfig, config: Config, fleet: UpstreamFleet, preparations: Preparations): ChatEngine {
  switch (model.engine.type) {
    case 'openai':
      return openOpenAiEngine(model, config.env, fleet.open(model))
    case 'anthropic':
      return openAnthropicEngine(model, config.env, fleet.open(model))
    case 'llama':
      return openLlamaEngine(model, {
        weightsDir: config.weightsDir,
        modelsDir: config.modelsDir,
        onProgress: (fraction, message) => preparations.report(model.id, fraction, message),
        stopping: preparations.stopping,
      })
    case 'echo':
      return openEchoEngine(model)
    case 'local':
    case 'research':
      throw new ServiceError('model_not_supported', `The model '${model.id}' does not generate text.`)
  }
}
