// An HTTP server for artifacts: no Python, no torch.
//
//     serve --port 8080 --callers 4 --threads 1 bert=bert.lamp resnet=resnet.lamp
//
//     GET  /health               {"status": "ok"}, or 503 while it stops
//     GET  /models               what the models take and give
//     GET  /metrics              calls, errors and latencies of each model
//     POST /models/NAME[/ENTRY]  application/json: {"inputs": {"x": [[1.0, 2.0]]}}, or a list of inputs in order
//                                application/octet-stream: the bytes of all inputs, one after another, with a header
//                                X-Shapes: 1x3x224x224,1x4; the answer has the results in the same form
//
// Requests run at the same time, each in a thread of the server (--callers). A model's kernels share --threads threads when
// they are free. SIGINT or SIGTERM: what runs is finished, nothing new is taken.
#include <lampwork/lampwork.hpp>

#include <httplib.h>
#include <nlohmann/json.hpp>

#include <csignal>
#include <pthread.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <map>
#include <mutex>
#include <thread>

namespace {

using Json = nlohmann::json;

// What the client did wrong.
struct BadRequest : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// Calls of a model, with the times of the last of them.
class Metrics {
 public:
  void add(double milliseconds, bool failed) {
    const std::lock_guard<std::mutex> lock(mutex_);
    ++(failed ? errors_ : calls_);
    if (!failed) times_[(calls_ - 1) % times_.size()] = milliseconds;
  }
  Json show() const {
    std::vector<double> times;
    uint64_t calls = 0, errors = 0;
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      calls = calls_;
      errors = errors_;
      times.assign(times_.begin(), times_.begin() + static_cast<std::ptrdiff_t>(std::min<uint64_t>(calls, times_.size())));
    }
    std::sort(times.begin(), times.end());
    const auto at = [&times](double part) {
      return times.empty() ? 0 : times[std::min(times.size() - 1, static_cast<size_t>(part * static_cast<double>(times.size())))];
    };
    return {{"calls", calls}, {"errors", errors}, {"p50_ms", at(0.5)}, {"p90_ms", at(0.9)}, {"p99_ms", at(0.99)}};
  }

 private:
  mutable std::mutex mutex_;
  uint64_t calls_ = 0;
  uint64_t errors_ = 0;
  std::array<double, 4096> times_{};
};

struct Served {
  explicit Served(const std::string& path, const lampwork::Options& options) : model(path, options) {}
  lampwork::Model model;
  Metrics metrics;
};

// The elements of a tensor as the client sent them.
struct Input {
  std::vector<int64_t> shape;
  std::vector<char> bytes;
};

template <class T>
void put(Input& input, T value) {
  const auto* from = reinterpret_cast<const char*>(&value);
  input.bytes.insert(input.bytes.end(), from, from + sizeof value);
}

void flatten(const Json& json, lw_dtype dtype, size_t depth, Input& input) {
  if (json.is_array()) {
    const auto size = static_cast<int64_t>(json.size());
    if (depth == input.shape.size()) {
      if (!input.bytes.empty()) throw BadRequest("lists of an input differ in depth");
      input.shape.push_back(size);
    }
    if (input.shape[depth] != size) throw BadRequest("lists of an input differ in length");
    for (const Json& item : json) flatten(item, dtype, depth + 1, input);
    return;
  }
  if (depth != input.shape.size()) throw BadRequest("lists of an input differ in depth");
  const bool is_number = json.is_number() || json.is_boolean();
  const auto number = [&json] { return json.is_boolean() ? (json.get<bool>() ? 1.0 : 0.0) : json.get<double>(); };
  const auto whole = [&json] { return json.is_boolean() ? int64_t{json.get<bool>()} : json.get<int64_t>(); };
  if (!is_number) throw BadRequest("an input holds what is no number");
  switch (dtype) {
    case LW_FLOAT32:
      return put(input, static_cast<float>(number()));
    case LW_FLOAT64:
      return put(input, number());
    case LW_INT64:
      return put(input, whole());
    case LW_INT32:
      return put(input, static_cast<int32_t>(whole()));
    case LW_UINT8:
      return put(input, static_cast<uint8_t>(whole()));
    case LW_BOOL:
      return put(input, number() != 0);
    default:
      throw BadRequest(std::string("inputs that are ") + lw_dtype_name(dtype) + " come as bytes");
  }
}

std::vector<Input> inputs_of(const Json& body, const std::vector<lampwork::Spec>& specs) {
  const auto given = body.is_object() ? body.find("inputs") : body.end();
  if (given == body.end()) throw BadRequest("the body has no \"inputs\"");
  std::vector<Input> inputs(specs.size());
  if (given->size() != specs.size())
    throw BadRequest("there are " + std::to_string(given->size()) + " inputs; " + std::to_string(specs.size()) + " were expected");
  for (size_t i = 0; i < specs.size(); ++i) {
    if (given->is_object() && !given->contains(specs[i].name)) throw BadRequest("there is no input \"" + specs[i].name + "\"");
    flatten(given->is_object() ? (*given)[specs[i].name] : (*given)[i], specs[i].dtype, 0, inputs[i]);
  }
  return inputs;
}

std::vector<Input> inputs_of(const std::string& body, const std::string& shapes, const std::vector<lampwork::Spec>& specs) {
  std::vector<Input> inputs;
  size_t place = 0;
  for (size_t at = 0; at < shapes.size();) {
    const size_t end = std::min(shapes.find(',', at), shapes.size());
    if (inputs.size() == specs.size()) throw BadRequest("X-Shapes names more inputs than the model takes");
    Input input;
    size_t bytes = lw_dtype_size(specs[inputs.size()].dtype);
    for (size_t from = at; from < end;) {
      const size_t to = std::min(shapes.find('x', from), end);
      if (to == from || to - from > 9 || !std::all_of(&shapes[from], &shapes[to], [](char c) { return c >= '0' && c <= '9'; }))
        throw BadRequest("X-Shapes is not of the form 1x3x224x224,1x4");
      input.shape.push_back(std::stol(shapes.substr(from, to - from)));
      if (__builtin_mul_overflow(bytes, static_cast<size_t>(input.shape.back()), &bytes)) throw BadRequest("an input is too large");
      from = to + 1;
    }
    if (bytes > body.size() - place) throw BadRequest("the body is shorter than X-Shapes says");
    input.bytes.assign(body.begin() + static_cast<std::ptrdiff_t>(place), body.begin() + static_cast<std::ptrdiff_t>(place + bytes));
    place += bytes;
    inputs.push_back(std::move(input));
    at = end + 1;
  }
  if (inputs.size() != specs.size() || place != body.size()) throw BadRequest("the body has other inputs than the model takes");
  return inputs;
}

template <class T>
Json nested(const std::vector<T>& elements, const std::vector<int64_t>& shape, size_t dim, size_t& at) {
  if (dim == shape.size()) return Json(elements[at++]);
  Json list = Json::array();
  for (int64_t i = 0; i < shape[dim]; ++i) list.push_back(nested(elements, shape, dim + 1, at));
  return list;
}

template <class T>
Json as_json(const lampwork::Tensor& tensor) {
  size_t at = 0;
  return nested(tensor.elements<T>(), tensor.shape(), 0, at);
}

Json as_json(const lampwork::Tensor& tensor) {
  switch (tensor.dtype()) {
    case LW_FLOAT32:
      return as_json<float>(tensor);
    case LW_FLOAT64:
      return as_json<double>(tensor);
    case LW_INT64:
      return as_json<int64_t>(tensor);
    case LW_INT32:
      return as_json<int32_t>(tensor);
    default:
      throw BadRequest(std::string("results that are ") + lw_dtype_name(tensor.dtype()) + " are given as bytes");
  }
}

template <class T>
void append(const lampwork::Tensor& tensor, std::string& body) {
  for (const T& each : tensor.elements<T>()) body.append(reinterpret_cast<const char*>(&each), sizeof each);
}

void append(const lampwork::Tensor& tensor, std::string& body) {
  if (tensor.is_contiguous()) {
    body.append(static_cast<const char*>(tensor.data()), static_cast<size_t>(tensor.count()) * lw_dtype_size(tensor.dtype()));
  } else if (tensor.dtype() == LW_FLOAT32) {
    append<float>(tensor, body);
  } else if (tensor.dtype() == LW_INT64) {
    append<int64_t>(tensor, body);
  } else {
    throw BadRequest(std::string("results that are ") + lw_dtype_name(tensor.dtype()) + " and do not lie in rows");
  }
}

void answer(Served& served, const std::string& entry_name, const httplib::Request& request, httplib::Response& response) {
  const size_t entry = entry_name.empty() ? 0 : served.model.entry(entry_name);
  const std::vector<lampwork::Spec> specs = served.model.inputs(entry);
  const bool is_raw = request.get_header_value("Content-Type") == "application/octet-stream";
  std::vector<Input> inputs =
      is_raw ? inputs_of(request.body, request.get_header_value("X-Shapes"), specs) : inputs_of(Json::parse(request.body), specs);
  std::vector<lampwork::Tensor> tensors;
  for (size_t i = 0; i < inputs.size(); ++i) tensors.emplace_back(inputs[i].bytes.data(), specs[i].dtype, inputs[i].shape);
  const lampwork::Result result = served.model.run(tensors, entry);
  const std::vector<lampwork::Spec> outputs = served.model.outputs(entry);
  std::string body, shapes;
  Json json = Json::object();
  for (size_t i = 0; i < result.size(); ++i) {
    const lampwork::Tensor tensor = result[i];
    if (is_raw) {
      append(tensor, body);
      shapes += i == 0 ? "" : ",";
      for (size_t d = 0; d < tensor.shape().size(); ++d) shapes += (d == 0 ? "" : "x") + std::to_string(tensor.shape()[d]);
    } else {
      json[outputs[i].name] = as_json(tensor);
    }
  }
  if (is_raw) {
    response.set_header("X-Shapes", shapes);
    response.set_content(body, "application/octet-stream");
  } else {
    response.set_content(Json{{"outputs", json}}.dump(), "application/json");
  }
}

void refuse(httplib::Response& response, int status, const std::string& message) {
  response.status = status;
  response.set_content(Json{{"error", message}}.dump(-1, ' ', false, Json::error_handler_t::replace), "application/json");
}

Json described(const Served& served) {
  Json entries = Json::object();
  size_t number = 0;
  for (const std::string& name : served.model.entries()) {
    const auto specs = [](const std::vector<lampwork::Spec>& all) {
      Json list = Json::array();
      for (const lampwork::Spec& spec : all) list.push_back({{"name", spec.name}, {"dtype", lw_dtype_name(spec.dtype)}, {"shape", spec.shape}});
      return list;
    };
    entries[name] = {{"inputs", specs(served.model.inputs(number))}, {"outputs", specs(served.model.outputs(number))}};
    ++number;
  }
  return {{"target", served.model.target()}, {"entries", entries}};
}

int serve(int count, char** arguments) {
  int port = 8080;
  size_t callers = std::max(1U, std::thread::hardware_concurrency());
  lampwork::Options options;
  options.trust = true;  // the files come from whoever starts the server, who may ask for signatures
  options.threads = 1;
  std::map<std::string, std::unique_ptr<Served>> models;
  for (int i = 1; i < count; ++i) {
    const std::string argument = arguments[i];
    const bool has_value = argument.rfind("--", 0) == 0 && i + 1 < count;
    const size_t equals = argument.find('=');
    if (has_value && argument == "--port") {
      port = std::stoi(arguments[++i]);
    } else if (has_value && argument == "--callers") {
      callers = static_cast<size_t>(std::max(1, std::stoi(arguments[++i])));
    } else if (has_value && argument == "--threads") {
      options.threads = std::stoi(arguments[++i]);
    } else if (has_value && argument == "--key") {
      options.keys.emplace_back(arguments[++i]);
    } else if (equals != std::string::npos && argument.rfind("--", 0) != 0) {
      auto served = std::make_unique<Served>(argument.substr(equals + 1), options);
      for (size_t entry = 0; entry < served->model.entries().size(); ++entry) served->model.prepare(entry);
      std::printf("%s: %s\n", argument.c_str(), served->model.target_reason().c_str());
      models[argument.substr(0, equals)] = std::move(served);
    } else {
      std::fprintf(stderr, "usage: serve [--port N] [--callers N] [--threads N] [--key KEY.pub.pem]... NAME=FILE...\n");
      return 2;
    }
  }

  // Signals come to one thread, which waits for them.
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGINT);
  sigaddset(&signals, SIGTERM);
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);

  httplib::Server server;
  std::atomic<bool> stops{false};
  server.new_task_queue = [callers] { return new httplib::ThreadPool(callers); };
  server.set_payload_max_length(size_t{256} << 20);
  server.set_tcp_nodelay(true);
  server.set_keep_alive_max_count(1000000);
  server.Get("/health", [&](const httplib::Request&, httplib::Response& response) {
    if (stops) return refuse(response, 503, "the server stops");
    response.set_content(R"({"status":"ok"})", "application/json");
  });
  server.Get("/models", [&](const httplib::Request&, httplib::Response& response) {
    Json json = Json::object();
    for (const auto& [name, served] : models) json[name] = described(*served);
    response.set_content(json.dump(), "application/json");
  });
  server.Get("/metrics", [&](const httplib::Request&, httplib::Response& response) {
    Json json = Json::object();
    for (const auto& [name, served] : models) json[name] = served->metrics.show();
    response.set_content(json.dump(), "application/json");
  });
  server.Post(R"(/models/([^/]+)(?:/([^/]+))?)", [&](const httplib::Request& request, httplib::Response& response) {
    const auto found = models.find(request.matches[1].str());
    if (found == models.end()) return refuse(response, 404, "there is no model " + request.matches[1].str());
    const auto begin = std::chrono::steady_clock::now();
    bool failed = true;
    try {
      answer(*found->second, request.matches[2].str(), request, response);
      failed = false;
    } catch (const BadRequest& error) {
      refuse(response, 400, error.what());
    } catch (const Json::exception& error) {
      refuse(response, 400, error.what());
    } catch (const lampwork::Error& error) {
      const bool is_theirs = error.status() == LW_INPUT || error.status() == LW_KERNEL || error.status() == LW_ARGUMENT;
      refuse(response, is_theirs ? 400 : 500, error.what());
    }
    found->second->metrics.add(
        std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - begin).count(), failed);
  });

  if (!server.bind_to_port("127.0.0.1", port)) {
    std::fprintf(stderr, "port %d cannot be had\n", port);
    return 1;
  }
  std::thread waiter([&] {
    int signal = 0;
    sigwait(&signals, &signal);
    stops = true;
    server.stop();
  });
  std::printf("listening on 127.0.0.1:%d\n", port);
  std::fflush(stdout);
  const bool fine = server.listen_after_bind();
  pthread_kill(waiter.native_handle(), SIGTERM);  // if it was no signal that ended it
  waiter.join();
  std::printf("stopped\n");
  return fine ? 0 : 1;
}

}  // namespace

int main(int count, char** arguments) {
  try {
    return serve(count, arguments);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
