// A network of one hidden layer: 64 pixels -> 64 rectified units -> 10 classes, softmax and cross-entropy.
//
// All parameters live in one vector, and a gradient is a vector of the same shape: what the ranks add up is
// one contiguous array. Everything is double, so the order in which 1 or 4 ranks add changes only the last
// digits.
#pragma once

#include "dataset.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <vector>

namespace digits {

class network {
public:
    static constexpr std::size_t hidden_count = 64;
    static constexpr std::size_t hidden_weights = 0; // [pixel][unit]
    static constexpr std::size_t hidden_biases = hidden_weights + pixel_count * hidden_count;
    static constexpr std::size_t output_weights = hidden_biases + hidden_count; // [unit][class]
    static constexpr std::size_t output_biases = output_weights + hidden_count * class_count;
    static constexpr std::size_t parameter_count = output_biases + class_count;

    // The same seed on every rank gives every rank the same start, so no weights need to be sent.
    explicit network(random_source random) : parameters_(parameter_count), velocity_(parameter_count) {
        fill(random, hidden_weights, hidden_biases, std::sqrt(6.0 / pixel_count));
        fill(random, output_weights, output_biases, std::sqrt(6.0 / (hidden_count + class_count)));
    }

    const std::vector<double>& parameters() const { return parameters_; }

    // All that a step depends on: a network that is given another's state goes on like that one.
    static constexpr std::size_t state_count = 2 * parameter_count;

    std::vector<double> state() const {
        std::vector<double> both(parameters_);
        both.insert(both.end(), velocity_.begin(), velocity_.end());
        return both;
    }

    void restore(const std::vector<double>& state) {
        std::copy_n(state.begin(), parameter_count, parameters_.begin());
        std::copy_n(state.begin() + parameter_count, parameter_count, velocity_.begin());
    }

    std::size_t classify(const sample& given) const {
        const auto scores = forward(given).scores;
        return static_cast<std::size_t>(std::max_element(scores.begin(), scores.end()) - scores.begin());
    }

    // Adds the sample's gradient to gradient[0 .. parameter_count) and returns its loss.
    double add_gradient(const sample& given, std::vector<double>& gradient) const {
        const activations seen = forward(given);

        // d loss / d score = probability - 1 for the right class, probability for the others.
        const double highest = *std::max_element(seen.scores.begin(), seen.scores.end());
        std::array<double, class_count> slope{};
        double sum = 0;
        for (std::size_t c = 0; c < class_count; ++c) {
            slope[c] = std::exp(seen.scores[c] - highest);
            sum += slope[c];
        }
        for (double& value : slope) {
            value /= sum;
        }
        const double loss = std::log(sum) + highest - seen.scores[given.label];
        slope[given.label] -= 1;

        std::array<double, hidden_count> hidden_slope{};
        for (std::size_t unit = 0; unit < hidden_count; ++unit) {
            if (seen.hidden[unit] <= 0) {
                continue; // a unit that is off passes nothing on and learns nothing
            }
            const double* weights = &parameters_[output_weights + unit * class_count];
            double* weight_gradient = &gradient[output_weights + unit * class_count];
            for (std::size_t c = 0; c < class_count; ++c) {
                weight_gradient[c] += seen.hidden[unit] * slope[c];
                hidden_slope[unit] += weights[c] * slope[c];
            }
        }
        add_scaled(slope.data(), 1, class_count, &gradient[output_biases]);
        add_scaled(hidden_slope.data(), 1, hidden_count, &gradient[hidden_biases]);
        for (std::size_t pixel = 0; pixel < pixel_count; ++pixel) {
            if (given.pixels[pixel] != 0) {
                add_scaled(hidden_slope.data(), given.pixels[pixel], hidden_count,
                           &gradient[hidden_weights + pixel * hidden_count]);
            }
        }
        return loss;
    }

    // One step of gradient descent with momentum, along gradient_sum / batch_size.
    void step(const std::vector<double>& gradient_sum, std::size_t batch_size, double rate, double momentum) {
        const double scale = rate / static_cast<double>(batch_size);
        for (std::size_t i = 0; i < parameter_count; ++i) {
            velocity_[i] = momentum * velocity_[i] - scale * gradient_sum[i];
            parameters_[i] += velocity_[i];
        }
    }

private:
    struct activations {
        std::array<double, hidden_count> hidden{};
        std::array<double, class_count> scores{};
    };

    activations forward(const sample& given) const {
        activations seen;
        std::copy_n(&parameters_[hidden_biases], hidden_count, seen.hidden.begin());
        for (std::size_t pixel = 0; pixel < pixel_count; ++pixel) {
            if (given.pixels[pixel] != 0) { // half of the paper is blank
                add_scaled(&parameters_[hidden_weights + pixel * hidden_count], given.pixels[pixel],
                           hidden_count, seen.hidden.data());
            }
        }
        std::copy_n(&parameters_[output_biases], class_count, seen.scores.begin());
        for (std::size_t unit = 0; unit < hidden_count; ++unit) {
            seen.hidden[unit] = std::max(0.0, seen.hidden[unit]);
            add_scaled(&parameters_[output_weights + unit * class_count], seen.hidden[unit], class_count,
                       seen.scores.data());
        }
        return seen;
    }

    static void add_scaled(const double* from, double factor, std::size_t count, double* to) {
        for (std::size_t i = 0; i < count; ++i) {
            to[i] += factor * from[i];
        }
    }

    void fill(random_source& random, std::size_t begin, std::size_t end, double range) {
        for (std::size_t i = begin; i < end; ++i) {
            parameters_[i] = range * (2 * random.uniform() - 1);
        }
    }

    std::vector<double> parameters_;
    std::vector<double> velocity_;
};

} // namespace digits
